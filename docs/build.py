"""Build the documentation: every Markdown page as HTML, formulas as MathML, nothing loaded from outside."""

import argparse
import html
import re
from pathlib import Path

from latex2mathml.converter import convert
from markdown_it import MarkdownIt

DOCS = Path(__file__).parent
PAGES = {
    "index": DOCS.parent / "README.md",
    "tutorial": DOCS / "tutorial.md",
    "howto-simulate": DOCS / "howto-simulate.md",
    "howto-policy": DOCS / "howto-policy.md",
    "howto-own-table": DOCS / "howto-own-table.md",
    "howto-traces": DOCS / "howto-traces.md",
    "howto-sweep": DOCS / "howto-sweep.md",
    "howto-embed": DOCS / "howto-embed.md",
    "live": DOCS / "live.md",
    "howto-distributed": DOCS / "howto-distributed.md",
    "howto-ray": DOCS / "howto-ray.md",
    "maths": DOCS / "maths.md",
    "design": DOCS / "design.md",
    "findings": DOCS / "findings.md",
    "CONTRIBUTING": DOCS.parent / "CONTRIBUTING.md",
    "CHANGELOG": DOCS.parent / "CHANGELOG.md",
}
STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 52rem; margin: 0 auto; padding: 1rem 1.2rem 4rem }
nav { display: flex; flex-wrap: wrap; gap: .4rem 1.1rem; padding: .6rem 0; border-bottom: 1px solid #8886 }
pre, code { font: 13.5px/1.45 ui-monospace, monospace; background: #8882; border-radius: 4px }
pre { padding: .8rem 1rem; overflow-x: auto } code { padding: .1em .3em } pre code { background: none; padding: 0 }
table { border-collapse: collapse; display: block; overflow-x: auto }
td, th { border: 1px solid #8886; padding: .25rem .6rem }
img { max-width: 100% } math[display=block] { margin: 1rem 0; overflow-x: auto }
.tag { float: right; opacity: .7 }
"""


def formulas(text: str, kept: list[str]) -> str:
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


def page(name: str, text: str) -> str:
    """Return one page as HTML."""
    kept: list[str] = []
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(formulas(text, kept))
    body = re.sub(r"@@(\d+)@@", lambda found: kept[int(found[1])], body)
    body = re.sub(r'href="(?:docs/)?([\w-]+)\.md(#[\w-]*)?"', r'href="\1.html\2"', body)
    body = body.replace('src="docs/', 'src="')
    links = " ".join(f'<a href="{other}.html">{other}</a>' for other, path in PAGES.items() if path.exists())
    title = html.escape(text.splitlines()[0].lstrip("# "))
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    head += f"<style>{STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body><nav>{links}</nav>{body}</body></html>"


def build(out: Path) -> list[Path]:
    """Write all pages and pictures to `out`; return the pages."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, path in PAGES.items():
        if path.exists():
            written.append(out / f"{name}.html")
            written[-1].write_text(page(name, path.read_text(encoding="utf-8")), encoding="utf-8")
    for picture in DOCS.glob("*.png"):
        (out / picture.name).write_bytes(picture.read_bytes())
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("site"))
    for written_page in build(parser.parse_args().out):
        print(written_page)
