"""A page of the site: Markdown with formulas and code becomes HTML with a menu, and an entry in the search index."""

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

OVERVIEW = "index"
_FORMATTER = HtmlFormatter(nowrap=True)
_NUMBER = re.compile(r"\((\d+)\)")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Page:
    """The Markdown of a page, which starts with its title, and the name of its HTML file without the suffix."""

    name: str
    markdown: str

    @cached_property
    def tokens(self) -> list[Token]:
        """The parsed Markdown."""
        return _MARKDOWN.parse(self.markdown)

    @cached_property
    def title(self) -> str:
        """The text of the first heading; the first page of the site is called Overview."""
        return "Overview" if self.name == OVERVIEW else _text(self.tokens[1:2])

    @cached_property
    def sections(self) -> list[tuple[Token, Token, list[Token]]]:
        """The start of each heading, its content, and what follows up to the next heading."""
        tokens = self.tokens
        starts = [k for k, token in enumerate(tokens) if token.type == "heading_open" and token.tag <= "h3"]
        return [(tokens[k], tokens[k + 1], tokens[k + 3 : end]) for k, end in pairwise([*starts, len(tokens)])]


def page_name(path: PurePosixPath) -> str:
    """Return the name of the page of a Markdown file: that of its folder for a README."""
    return (path.parent.name or OVERVIEW) if path.name == "README.md" else path.stem


def render(page: Page, menu: Mapping[str, Sequence[Page]]) -> str:
    """Return the complete HTML of a page."""
    groups = "".join(f"<h2>{title}</h2><ul>{_items(pages, page)}</ul>" for title, pages in menu.items())
    order = [one for pages in menu.values() for one in pages]
    place = order.index(page)
    before = "".join(_link(one, "← {}", ' rel="prev"') for one in order[:place][-1:]) or "<span></span>"
    after = "".join(_link(one, "{} →", ' rel="next"') for one in order[place + 1 :][:1])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(page.title)} · bilinq</title>"
        '<link rel="stylesheet" href="style.css">'
        '<script defer src="search.js"></script><script defer src="find.js"></script>'
        '<script defer src="page.js"></script>'
        '</head><body><a class="skip" href="#content">Skip to the content</a>'
        '<nav aria-label="Pages"><a class="home" href="index.html">bilinq</a>'
        '<input id="find" type="search" placeholder="Search (press /)" aria-label="Search"><ol id="found"></ol>'
        f'<details id="menu" open><summary>Pages</summary>{groups}</details></nav>'
        f'<main id="content">{_html(page.tokens)}<footer>{before}{after}</footer></main></body></html>\n'
    )


def search_index(pages: Iterable[Page]) -> str:
    """Return a script that defines `SECTIONS`: page, anchor, title of the page, heading and text of every section."""
    entries = [
        [page.name, start.attrs.get("id", ""), page.title, _text([heading]), _text(content)]
        for page in pages
        for start, heading, content in page.sections
    ]
    return f"const SECTIONS = {json.dumps(entries, ensure_ascii=False, separators=(',', ':'))};\n"


def _link(page: Page, label: str = "{}", attributes: str = "") -> str:
    return f'<a href="{page.name}.html"{attributes}>{label.format(html.escape(page.title))}</a>'


def _items(pages: Iterable[Page], current: Page) -> str:
    """Return links to pages; below the current page there are links to its sections."""
    headings = [(start.attrs["id"], heading) for start, heading, _ in current.sections if start.tag == "h2"]
    links = "".join(f'<li><a href="#{anchor}">{_html([heading])}</a></li>' for anchor, heading in headings)
    here = _link(current, attributes=' aria-current="page"') + (f"<ul>{links}</ul>" if links else "")
    return "".join(f"<li>{here if page is current else _link(page)}</li>" for page in pages)


class _Renderer(RendererHTML):
    """HTML in which a block of code that is a file, such as ```python worker.py, shows the name of the file."""

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Return a block of code with the name of its file above it."""
        name = tokens[idx].info.partition(" ")[2].strip()
        caption = f"<p>{html.escape(name)}</p>" if name else ""
        return f'<div class="code">{caption}{super().fence(tokens, idx, options, env)}</div>'


class _Markdown(MarkdownIt):
    """CommonMark with tables, formulas, colored code, anchors, and links between the pages of the site."""

    def __init__(self) -> None:
        super().__init__("commonmark", {"highlight": _highlighted}, renderer_cls=_Renderer)
        self.enable("table")
        self.use(dollarmath_plugin, allow_labels=False, renderer=_formula)
        self.use(anchors_plugin, min_level=2, max_level=3, slug_func=lambda text: "-".join(_WORD.findall(text.lower())))
        self.inline.add_terminator_char("(")
        self.inline.ruler.push("equation", _equation)

    def normalizeLink(self, url: str) -> str:
        """Return the address in the site of a Markdown file or a picture in the repository."""
        parts = urlsplit(url)
        path = PurePosixPath(parts.path)
        if parts.scheme or path.suffix not in (".md", ".png"):
            return super().normalizeLink(url)
        return parts._replace(path=f"{page_name(path)}.html" if path.suffix == ".md" else path.name).geturl()


def _equation(state: StateInline, silent: bool) -> bool:
    """Link the number in `Eq. (3)` to that equation on the page `maths`; a rule of the inline parser."""
    number = _NUMBER.match(state.src, state.pos)
    if not number or state.linkLevel or not state.src[: state.pos].endswith(("Eq. ", "Eqs. ")):
        return False
    if not silent:
        state.push("link_open", "a", 1).attrSet("href", f"maths.html#eq{number[1]}")
        state.push("text", "", 0).content = number[0]
        state.push("link_close", "a", -1)
    state.pos = number.end()
    return True


def _formula(latex: str, options: Mapping[str, bool]) -> str:
    """Return a formula as MathML, with its number and anchor if it has a `\\tag`."""
    body, _, number = latex.partition(r"\tag{")
    number = number.rstrip("}")
    label = f'<span class="tag" id="eq{number}">({number})</span>' if number else ""
    return label + convert(body.strip(), display="block" if options["display_mode"] else "inline")


def _highlighted(code: str, language: str, _: str) -> str:
    """Return code as HTML with colors, or nothing if the language is unknown."""
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound:
        return ""
    return str(highlight(code, lexer, _FORMATTER))


def _html(tokens: Sequence[Token]) -> str:
    return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))


def _text(tokens: Iterable[Token]) -> str:
    """Return the words of tokens, without markup and formulas."""
    return " ".join("".join(_pieces(tokens)).split())


def _pieces(tokens: Iterable[Token]) -> Iterator[str]:
    for token in tokens:
        if token.children is not None:
            yield from _pieces(token.children)
        elif token.type in ("text", "code_inline", "code_block", "fence"):
            yield token.content
        elif token.block or token.type == "softbreak":
            yield " "


_MARKDOWN = _Markdown()
