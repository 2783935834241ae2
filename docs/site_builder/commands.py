"""The reference of the command line, from the commands themselves."""

from collections.abc import Iterator
from typing import Any

import typer.main


def text() -> str:
    """Return the page as Markdown: every command with what it says about itself."""
    from bilinq.commands.app import app

    parts = ["# Command line", "Each command tells the same with `--help`."]
    for path, command in _commands("bilinq", typer.main.get_command(app)):
        with command.make_context(path, [], resilient_parsing=True) as context:
            parts += [f"## {path}", f"```text\n{command.get_help(context).strip()}\n```"]
    return "\n\n".join(parts)


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield commands that do something, with the words that call them."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, one in command.commands.items():
        yield from _commands(f"{path} {name}", one)
