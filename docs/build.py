"""Build the documentation: pages, a reference from docstrings, a search. Nothing is loaded from outside.

`python docs/build.py --out site`; open `site/index.html`, no server is needed.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from site_builder import commands, reference, routes
from site_builder.page import Page, picture_files, render, written
from site_builder.search import index

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SECTIONS: dict[str, dict[str, Path | Callable[[], str]]] = {
    "Start": {"index": ROOT / "README.md", "tutorial": DOCS / "tutorial.md"},
    "How to": {
        "howto-simulate": DOCS / "howto-simulate.md",
        "howto-policy": DOCS / "howto-policy.md",
        "howto-own-table": DOCS / "howto-own-table.md",
        "howto-traces": DOCS / "howto-traces.md",
        "howto-sweep": DOCS / "howto-sweep.md",
        "howto-embed": DOCS / "howto-embed.md",
        "live": DOCS / "live.md",
        "operations": DOCS / "operations.md",
        "llm_router": ROOT / "examples" / "llm_router" / "README.md",
        "howto-distributed": DOCS / "howto-distributed.md",
        "howto-ray": DOCS / "howto-ray.md",
    },
    "Understand": {
        "findings": DOCS / "findings.md",
        "maths": DOCS / "maths.md",
        "design": DOCS / "design.md",
        "measured": DOCS / "measured.md",
        "scale": DOCS / "scale.md",
    },
    "Reference": {**reference.PAGES, "commands": commands.text, "http": routes.text},
    "Project": {"CONTRIBUTING": ROOT / "CONTRIBUTING.md", "CHANGELOG": ROOT / "CHANGELOG.md"},
}
"""What is in the menu: names of pages, and where their Markdown is, or what makes it."""


def build(out: Path) -> list[Path]:
    """Write all pages, pictures and the search to `out`; return the pages."""
    out.mkdir(parents=True, exist_ok=True)
    menu = {
        section: [Page(name, source.read_text(encoding="utf-8") if isinstance(source, Path) else source())
                  for name, source in sources.items() if not isinstance(source, Path) or source.exists()]
        for section, sources in SECTIONS.items()
    }  # fmt: skip
    pages = [page for some in menu.values() for page in some]
    for page in pages:
        written(out / f"{page.name}.html", render(page, menu))
    written(out / "search.js", index(pages))
    for file in (
        *Path(__file__).parent.joinpath("site_builder").glob("*.[cj]s*"),
        *picture_files(DOCS, ROOT / "examples"),
    ):
        (out / file.name).write_bytes(file.read_bytes())
    return [out / f"{page.name}.html" for page in pages]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("site"))
    for path in build(parser.parse_args().out):
        print(path)
