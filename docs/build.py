"""Build the documentation site: Markdown pages, a reference from the source code, and a search.

Run `python docs/build.py --out site` and open `site/index.html`. The site needs no server and loads nothing from others.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from site_builder import reference
from site_builder.page import Page, page_name, render, search_index

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MENU: dict[str, Sequence[str | Callable[[], Page]]] = {
    "Start": ("README.md", "docs/start.md", "docs/concepts.md"),
    "Tutorials": (
        "docs/tutorial-embed.md", "docs/tutorial-serve.md", "docs/tutorial-gateway.md", "docs/tutorial-replay.md",
        "docs/tutorial-simulate.md", "docs/tutorial-paper.md",
    ),
    "Recipes": ("docs/recipes.md", "docs/moving.md"),
    "In your systems": (
        "docs/howto-embed.md", "docs/live.md", "docs/operations.md", "docs/reliability.md", "docs/gateway.md",
        "docs/howto-litellm.md", "docs/howto-ray-serve.md",
    ),
    "Simulate and compare": (
        "docs/howto-replay.md", "docs/howto-evaluate.md", "docs/howto-simulate.md", "docs/howto-notebook.md",
        "docs/howto-own-table.md", "docs/howto-policy.md", "docs/howto-sweep.md", "docs/howto-traces.md",
        "docs/howto-distributed.md", "docs/howto-ray.md",
    ),
    "Results": (
        "docs/contest.md", "docs/gateway-comparison.md", "docs/measured.md", "docs/scale.md", "docs/findings.md",
    ),
    "Understand": ("docs/maths.md", "docs/guarantees.md", "docs/design.md"),
    "Reference": reference.PAGES,
    "Project": ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"),
}  # fmt: skip
"""The pages in order: Markdown files of the repository, and functions that return a page."""


def build(out: Path) -> list[Path]:
    """Write all pages, pictures and the search index to `out`; return the paths of the pages."""
    out.mkdir(parents=True, exist_ok=True)
    menu = {title: [_page(source) for source in sources] for title, sources in MENU.items()}
    pages = {out / f"{page.name}.html": page for group in menu.values() for page in group}
    for path, page in pages.items():
        path.write_text(render(page, menu), encoding="utf-8")
    (out / "search.js").write_text(search_index(pages.values()), encoding="utf-8")
    assets = DOCS / "site_builder"
    for file in (
        *assets.glob("*.css"),
        *assets.glob("*.js"),
        *DOCS.rglob("*.png"),
        *(ROOT / "examples").rglob("*.png"),
    ):
        (out / file.name).write_bytes(file.read_bytes())
    return list(pages)


def _page(source: str | Callable[[], Page]) -> Page:
    if not isinstance(source, str):
        return source()
    return Page(page_name(PurePosixPath(source)), (ROOT / source).read_text(encoding="utf-8"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("site"))
    for path in build(parser.parse_args().out):
        print(path)
