"""One page: Markdown with formulas and code becomes HTML with a menu."""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

OVERVIEW = "index"
_COLOURS = HtmlFormatter(nowrap=True)


@dataclass(frozen=True)
class Page:
    """A page's name, which is that of its file, and its Markdown."""

    name: str
    text: str

    @cached_property
    def title(self) -> str:
        """The first heading, or what the first page is called in the menu."""
        if self.name == OVERVIEW:
            return "Overview"
        return self.text.splitlines()[0].lstrip("# ").replace("`", "")

    @cached_property
    def body(self) -> str:
        """The page as HTML, without menu."""
        kept: list[str] = []
        markdown = MarkdownIt("commonmark", {"html": True, "highlight": _coloured}).enable("table")
        body = markdown.render(_formulas(self.text, kept))
        body = re.sub(r"@@(\d+)@@", lambda found: kept[int(found[1])], body)
        body = re.sub(r"<(h[23])>(.*?)</\1>", _anchored, body)
        body = re.sub(r"(?<![\w>])(Eqs?\. )\((\d+)\)", r'\1<a href="maths.html#eq\2">(\2)</a>', body)
        return re.sub(r'(href|src)="([^":#]+)(#[\w-]*)?"', _local, body)

    @cached_property
    def headings(self) -> list[tuple[str, str]]:
        """Anchors and words of the headings of the second level."""
        return [(found[1], found[2]) for found in re.finditer(r'<h2 id="([^"]*)">(.*?)</h2>', self.body)]


def render(page: Page, menu: Mapping[str, Sequence[Page]]) -> str:
    """Return the whole page as HTML."""
    groups = "".join(f"<h2>{section}</h2><ul>{''.join(_link(page, one) for one in some)}</ul>"
                     for section, some in menu.items())  # fmt: skip
    order = [one for some in menu.values() for one in some]
    place = order.index(page)
    before, after = order[place - 1] if place else None, order[place + 1] if place + 1 < len(order) else None
    steps = (
        f'<a rel="prev" href="{before.name}.html">← {html.escape(before.title)}</a>' if before else "<span></span>"
    ) + (f'<a rel="next" href="{after.name}.html">{html.escape(after.title)} →</a>' if after else "")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(page.title)} · bilinq</title>"
        '<link rel="stylesheet" href="style.css">'
        '<script defer src="search.js"></script><script defer src="find.js"></script>'
        '</head><body><a class="skip" href="#content">Skip to the content</a>'
        '<nav aria-label="Pages"><a class="home" href="index.html">bilinq</a>'
        '<input id="find" type="search" placeholder="Search (press /)" aria-label="Search"><ol id="found"></ol>'
        f'<details id="menu" open><summary>Pages</summary>{groups}</details></nav>'
        f'<main id="content">{page.body}<footer>{steps}</footer></main></body></html>\n'
    )


def picture_files(*folders: Path) -> Iterator[Path]:
    """Yield the pictures of these folders."""
    for folder in folders:
        yield from folder.rglob("*.png")


def written(path: Path, text: str) -> None:
    """Write a file."""
    path.write_text(text, encoding="utf-8")


def _link(current: Page, page: Page) -> str:
    here = ' aria-current="page"' if page is current else ""
    inner = _contents(page.headings) if page is current else ""
    return f'<li><a href="{page.name}.html"{here}>{html.escape(page.title)}</a>{inner}</li>'


def _contents(headings: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<li><a href="#{anchor}">{words}</a></li>' for anchor, words in headings)
    return f"<ul>{items}</ul>" if items else ""


def _coloured(code: str, language: str, _: str) -> str:
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound:
        return ""
    return str(highlight(code, lexer, _COLOURS))


def _anchored(found: re.Match[str]) -> str:
    words = re.sub(r"<[^>]*>", "", found[2])
    anchor = re.sub(r"[^\w]+", "-", html.unescape(words).lower()).strip("-")
    return f'<{found[1]} id="{anchor}">{found[2]}</{found[1]}>'


def _local(found: re.Match[str]) -> str:
    """Let links between Markdown files and to pictures lead to the files of the site."""
    attribute, path, anchor = found[1], Path(found[2]), found[3] or ""
    if path.suffix == ".md":
        name = path.parent.name if path.name == "README.md" and path.parent.name else path.stem
        return f'{attribute}="{"index" if name == "README" else name}.html{anchor}"'
    return f'{attribute}="{path.name if path.suffix == ".png" else path}{anchor}"'


def _formulas(text: str, kept: list[str]) -> str:
    """Replace formulas outside code by placeholders and keep their MathML in `kept`."""

    def block(found: re.Match[str]) -> str:
        number = re.search(r"\\tag\{(\d+)\}", found[1])
        body = re.sub(r"\\tag\{\d+\}", "", found[1]).strip()
        label = f'<span class="tag" id="eq{number[1]}">({number[1]})</span>' if number else ""
        return keep(label + convert(body, display="block"))

    def keep(markup: str) -> str:
        kept.append(markup)
        return f"@@{len(kept) - 1}@@"

    parts = re.split(r"(```.*?```|`[^`\n]*`)", text, flags=re.DOTALL)
    for k in range(0, len(parts), 2):
        parts[k] = re.sub(r"\$\$(.+?)\$\$", block, parts[k], flags=re.DOTALL)
        parts[k] = re.sub(r"\$([^$\n]+?)\$", lambda found: keep(convert(found[1])), parts[k])
    return "".join(parts)
