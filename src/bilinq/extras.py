"""The optional parts of bilinq: the packages of each extra, and one clear line where a package is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from bilinq.errors import NotInstalled

EXTRAS = {
    "live": ("httpcore", "httptools", "httpx", "uvicorn", "uvloop"),
    "gateway": ("httpcore", "httptools", "uvicorn", "uvloop"),
    "postgres": ("psycopg",),
    "lab": ("matplotlib", "pyarrow"),
    "otel": ("opentelemetry",),
    "ray": ("ray",),
    "serve": ("ray", "fastapi", "starlette"),
    "litellm": ("litellm",),
    "text": ("sklearn",),
    "gymnasium": ("gymnasium",),
    "peers": ("mabwiser", "pareto_bandit", "vowpalwabbit"),
}
"""The packages that each extra installs, by the names that are imported."""
OTHERS = ("pandas",)  # packages that bilinq uses if they are there, and that no extra installs


def not_installed(package: str) -> NotInstalled | None:
    """Return the error for a package that cannot be imported, or None if bilinq does not know it.

    Examples
    --------
    >>> print(not_installed("psycopg.errors"))
    bilinq[postgres] is not installed; run: pip install 'bilinq[postgres]'
    """
    name = package.partition(".")[0]
    for extra, packages in EXTRAS.items():
        if name in packages:
            return NotInstalled(f"bilinq[{extra}] is not installed; run: pip install 'bilinq[{extra}]'", name=name)
    if name in OTHERS:
        return NotInstalled(f"{name} is not installed; run: pip install {name}", name=name)
    return None


@contextmanager
def optional_imports() -> Iterator[None]:
    """Raise `NotInstalled` if an import in the block misses a package of an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise not_installed(error.name or "") or error from None


def missing(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed."""
    return [package for package in EXTRAS[extra] if find_spec(package) is None]
