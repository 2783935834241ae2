"""The words of all pages, by section, for the search in the browser."""

import html
import json
import re
from collections.abc import Sequence

from site_builder.page import Page


def index(pages: Sequence[Page]) -> str:
    """Return a script that holds [page, anchor, title of page, heading, text] of every section."""
    entries = [entry for page in pages for entry in _sections(page)]
    return f"const SECTIONS = {json.dumps(entries, ensure_ascii=False, separators=(',', ':'))};\n"


def _sections(page: Page) -> list[list[str]]:
    parts = re.split(r'<h[23] id="([^"]*)">(.*?)</h[23]>', page.body)
    found = [[page.name, "", page.title, page.title, _text(parts[0])]]
    for anchor, heading, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        found.append([page.name, anchor, page.title, _text(heading), _text(body)])
    return found


def _text(markup: str) -> str:
    without = re.sub(r"<math.*?</math>|<(?!/?(?:span|code|em|strong))[^>]*>", " ", markup, flags=re.DOTALL)
    without = re.sub(r"<[^>]*>", "", without)
    return re.sub(r"\s+", " ", html.unescape(without)).strip()
