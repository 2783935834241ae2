"""`bilinq init`: write a commented file of settings to start from. It asks nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from typer import Argument, Option

from bilinq.commands.shared import Json, print_json
from bilinq.errors import BadInput, did_you_mean

SERVICE = """\
# Settings of the live service of bilinq; docs/live.md explains them.
# Lines that begin with # have no effect: they show other settings with their defaults.

# Mean time in seconds that jobs may wait for a server that suits them. More time means better matches.
target_wait = 2.0

# Lowest and highest reward that workers report, in your units.
reward = { low = 0.0, high = 1.0 }

# Kinds of jobs. Jobs of a class with twice the weight wait about half as long.
job_class = [
    { name = "chat", weight = 1.0 },
    { name = "code", weight = 1.0 },
]

# Kinds of servers. A worker says which class it belongs to: bilinq work small -- COMMAND
server_class = [
    { name = "small" },
    { name = "large" },
]
"""


class Kind(NamedTuple):
    """A kind of file: its usual name, its text, and the commands that use it, with {file} for its name."""

    file: str
    text: Callable[[], str]
    next: tuple[str, ...]


KINDS = {
    "service": Kind(
        "service.toml",
        lambda: SERVICE + "\n".join(_defaults()),
        ("export BILINQ_KEY=$(bilinq keys create --scope admin)", "bilinq serve --config {file}"),
    ),
    "gateway": Kind(
        "gateway.toml",
        lambda: (files("bilinq.gateway") / "gateway.toml").read_text(encoding="utf-8"),
        ("bilinq gateway --config {file}",),
    ),
}


def init(
    kind: Annotated[str, Argument(help=f"Kind of file: {', '.join(KINDS)}.")] = "service",
    out: Annotated[Path | None, Option(help="File to write. [default: KIND.toml]")] = None,
    force: Annotated[bool, Option("--force", help="Replace a file that exists.")] = False,
    json: Json = False,
) -> None:
    """Write a commented file of settings to start from.

    It contains the settings that most users change, and all others with their defaults, commented out.
    """
    if kind not in KINDS:
        raise BadInput(f"kind must be one of {', '.join(KINDS)}; got {kind!r}{did_you_mean(kind, KINDS)}")
    chosen = KINDS[kind]
    file = out or Path(chosen.file)
    try:
        with file.open("w" if force else "x", encoding="utf-8") as target:
            target.write(chosen.text())
    except FileExistsError:
        raise BadInput(f"{file}: exists already; use --force to replace it, or --out for another name") from None
    except OSError as error:
        raise BadInput(f"{file}: cannot be written; {error.strerror}") from None
    commands = [command.format(file=file) for command in chosen.next]
    if json:
        print_json({"file": file, "kind": kind, "next": commands})
        return
    typer.echo("\n".join([f"written to {file}; edit it, then run:", *(f"  {command}" for command in commands)]))


def _defaults() -> Iterator[str]:
    """Yield comment lines with every other setting of the service: what it means, and its default."""
    from bilinq.live.settings import SETTINGS

    for name, setting in SETTINGS.items():
        if name == "target_wait" or name.startswith("reward_"):
            continue
        default = "" if setting.default is None else _toml(setting.default)
        yield f"\n# {setting.description}\n# {name} = {default}".rstrip()
    yield ""


def _toml(value: bool | float | str) -> str:
    """Return a single value as TOML."""
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else repr(value)
