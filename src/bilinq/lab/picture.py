"""A figure as files and inside a page: PNG for anywhere, SVG for print, and SVG that follows a page's colours."""

import io
import re

import matplotlib as mpl
from matplotlib.figure import Figure

from bilinq.lab import style

ADAPTED = {
    style.INK: "currentColor", style.GREY: "var(--grey)", style.FAINT: "var(--faint)", style.BLUE: "var(--blue)",
    style.ORANGE: "var(--orange)", style.GREEN: "var(--green)", style.SKY: "var(--sky)", style.AMBER: "var(--amber)",
    style.PINK: "var(--pink)",
}  # fmt: skip
"""Colours of a figure that a page may choose for itself; the style sheet of the report defines them."""


def png(figure: Figure) -> bytes:
    """Return the figure as PNG on white, without a date."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150, facecolor="white", metadata={"Software": None},
                   pil_kwargs={"compress_level": 3})  # fmt: skip
    return file.getvalue()


def svg(figure: Figure, name: str) -> str:
    """Return the figure as SVG without a date; `name` makes its inner names repeatable."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+\n", "\n", file.getvalue())


def inline(text: str, name: str, description: str) -> str:
    """Return SVG text for the inside of a page: its colours follow the page's, its inner names clash with no other's."""
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{name}-", body)
    body = re.sub(r"'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif", body)
    for colour, adapted in ADAPTED.items():
        body = body.replace(colour, adapted)
    opening = re.compile(r"<svg\b[^>]*>")
    box = re.search(r'viewBox="[^"]*"', body)
    assert box is not None
    head = f'<svg {box[0]} xmlns:xlink="http://www.w3.org/1999/xlink" role="img" aria-label="{description}">'
    return opening.sub(head, body, count=1)
