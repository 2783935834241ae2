"""The commands of the tutorials and recipes run as they are written, and print what the pages show."""

import socket
from pathlib import Path

import pytest

from pages import BLOCK, FENCE, page, run, script, shown_by

PAGES = ("tutorial-serve", "tutorial-gateway", "tutorial-paper", "recipes", "moving", "gateway")


@pytest.mark.parametrize("name", PAGES)
def test_commands_print_what_is_shown(name: str, tmp_path: Path) -> None:
    text = BLOCK.sub("", page(f"docs/{name}.md"))  # blocks that Python runs alone are in test_docs.py
    if "gateway" in name:
        text = with_free_ports(text)
    printed = run(script(text, tmp_path), tmp_path)
    shown = [body for kind, _, body in FENCE.findall(text) if kind == "text"]
    assert shown
    for one in shown:
        assert shown_by(printed, one, 0.15), f"{name} shows\n{one}\nbut printed\n{printed}"
    assert name != "gateway" or '"finish_reason":"stop"' in printed, "curl shows an answer"


def with_free_ports(text: str) -> str:
    """Return a page of the gateway, and its gateway.toml, with ports that nobody uses in place of 9001 to 9004 and 8080."""
    first = next(port for port in range(20_000, 60_000, 10) if all(is_free(port + k) for k in range(5)))
    edits = ""
    for k, port in enumerate((9001, 9002, 9003, 9004, 8080)):
        text, edits = text.replace(str(port), str(first + k)), f"{edits}s/{port}/{first + k}/;"
    return text.replace("bilinq init gateway ", f"bilinq init gateway && sed -i '{edits}' gateway.toml ")


def is_free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0
