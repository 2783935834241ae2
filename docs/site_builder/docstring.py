"""A docstring in NumPy's style as Markdown."""

import inspect
import re
from typing import Any

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_LISTS = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Other Parameters")


def markdown(thing: Any) -> str:
    """Return what an object's docstring says; names and types of parameters become a list."""
    return as_markdown(inspect.getdoc(thing) or "")


def as_markdown(text: str) -> str:
    """Return a docstring as Markdown.

    Examples
    --------
    >>> print(as_markdown("Add.\\n\\nParameters\\n----------\\nx : int\\n    A number."))
    Add.
    <BLANKLINE>
    **Parameters**
    <BLANKLINE>
    - `x` *(int)* A number.
    """
    intro, *rest = _SECTION.split(text)
    parts = [intro.strip()]
    for name, body in zip(rest[::2], rest[1::2], strict=True):
        parts += [f"**{name}**", _items(body) if name in _LISTS else _plain(body)]
    return "\n\n".join(part for part in parts if part)


def _items(body: str) -> str:
    """Return a list of "name : type" lines, each with what is indented below it."""
    lines: list[str] = []
    for line in body.strip().splitlines():
        if line.startswith((" ", "\t")):
            lines[-1] += f" {line.strip()}"
        elif line.strip():
            name, _, kind = line.partition(" : ")
            lines.append(f"- `{name.strip()}`" + (f" *({_escaped(kind.strip())})*" if kind else ""))
    return "\n".join(lines)


def _plain(body: str) -> str:
    """Return text, with examples as code."""
    parts = re.split(r"((?:^>>> .*\n?)(?:^(?!\s*$).*\n?)*)", body.strip() + "\n", flags=re.MULTILINE)
    return "".join(f"```pycon\n{part.rstrip()}\n```\n\n" if part.startswith(">>> ") else part for part in parts).strip()


def _escaped(text: str) -> str:
    return re.sub(r"([*_<>\[\]])", r"\\\1", text)
