"""Every figure of the lab, small: its files, its texts, its claims, and the same bytes twice."""

import csv
import json
import re
from collections import Counter
from html import escape
from importlib.metadata import version
from pathlib import Path

import pytest

from bilinq import style
from bilinq.experiments import Synthetic
from bilinq.jsonable import plain
from bilinq.lab import figures
from bilinq.lab.figure import ReportOptions, Table
from bilinq.lab.figures import FIGURES
from bilinq.lab.paper import redraw
from bilinq.lab.presets import PRESETS
from bilinq.lab.report import CITATIONS
from bilinq.style import inline, svg

SMALL = ReportOptions(quick=True, replications=2)
NAMES = [figure.name for figure in FIGURES]
ROOT = Path(__file__).parents[2]
FINDINGS = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files except the report and the runs, which contain times."""
    kept = [path for path in folder.rglob("*.*") if path.suffix not in (".npz", ".html")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


@pytest.mark.parametrize("name", NAMES)
def test_figure_is_made_and_made_again(name: str, tmp_path: Path) -> None:
    made = redraw(SMALL, tmp_path, [name], workers=1)
    first = contents(tmp_path)
    table = {"verdicts.md"} if made.claims else set[str]()
    assert set(first) == {"claims.json", f"data/{name}.csv", f"figures/{name}.png", f"figures/{name}.svg"} | table
    rows = list(csv.reader(first[f"data/{name}.csv"].decode().splitlines()))
    assert len(rows) > 1
    assert first[f"figures/{name}.png"].startswith(b"\x89PNG")
    assert "<text" in first[f"figures/{name}.svg"].decode()
    assert json.loads(first["claims.json"])["claims"] == plain([claim.document() for claim in made.claims])
    assert all(claim.findings and claim.figure == name for claim in made.claims)
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert name in report and "@article{kim2021scheduling" in report and "@software{bilinq" in report
    ids = {f"{claim.id}`{' (ours)' if claim.ours else ''} |" for claim in made.claims}
    assert all(f"\n| `{text}" in FINDINGS for text in ids)  # the table of docs/findings.md is complete
    places = set(re.findall(r' id="([^"]+)"', report))
    assert set(re.findall(r'href="#([^"]+)"', report)) - places == set()
    for claim in made.claims:  # each verdict links to its numbers, and each number is there
        assert f'<td><a href="#claim-{claim.id}"><span class="chip {claim.verdict.name.lower()}">' in report
        assert all(escape(str(finding.effect)) in report for finding in claim.findings)
    redraw(SMALL, tmp_path, [name], workers=1)
    assert contents(tmp_path) == first


def test_same_seed_gives_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    for folder, workers in (("one", 1), ("two", 2)):
        redraw(SMALL, tmp_path / folder, ["comparison"], workers=workers)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    redraw(ReportOptions(quick=True, replications=2, seed=2), tmp_path / "two", ["comparison"], workers=1)
    assert contents(tmp_path / "one") != contents(tmp_path / "two")


def test_several_seeds_are_judged_together(tmp_path: Path) -> None:
    made = redraw(SMALL, tmp_path, ["comparison"], seeds=2, workers=1)
    assert all([seed for seed, _ in claim.seeds] == [1, 2] for claim in made.claims)
    single = redraw(SMALL, tmp_path, ["comparison"], workers=1)
    for one, two in zip(single.claims, made.claims, strict=True):
        assert dict(two.seeds)[1] == one.result
        for a, b in zip(one.findings, two.findings, strict=True):
            assert b.condition == a.condition and b.effect.value != a.effect.value


@pytest.mark.parametrize("preset", PRESETS)
def test_figures_of_the_paper_can_show_every_preset(preset: str, tmp_path: Path) -> None:
    redraw(ReportOptions(preset, replications=2, quick=True), tmp_path, ["comparison", "weights"], workers=1)


def test_each_figure_says_in_one_sentence_what_to_see() -> None:
    for figure in FIGURES:
        assert re.fullmatch(r"[A-Z].*[^.]\.", figure.see) and ". " not in figure.see, figure.name
        assert len(figure.see.split()) <= 30, figure.name


def test_findings_agree_with_their_table() -> None:
    """Numbers of claims and verdicts in the text are those of the table, and no seed contradicts another.

    A verdict is "holds" or "contradicted", or has counts of conditions; with a question mark it is not decided.
    """
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in FINDINGS.splitlines() if line.startswith("| `")
    ]
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(figures.__file__).parent.glob("*.py"))
    assert all(f'"{row[0].split("`")[1]}"' in sources for row in rows)  # no claim that is gone
    ours = [row for row in rows if "(ours)" in row[0]]
    of_paper = Counter(verdict_of(row[-1]) for row in rows if row not in ours)
    assert f"judges {len(rows) - len(ours)} claims of the paper and {len(ours)} observations of ours" in FINDINGS
    assert (
        f"Of the {of_paper.total()} claims, {of_paper['holds']} hold, {of_paper['conditional']} hold only under stated "
        f"conditions, {of_paper['undecided']} are not decided and "
    ) in FINDINGS
    assert ("none is contradicted under all" in FINDINGS) == (of_paper["contradicted"] == 0)
    for name, *seeds, together in rows:
        assert len(seeds) == 5, name
        assert not {"holds", "contradicted"} <= {verdict_of(cell) for cell in seeds}, name
        assert len(set(re.findall(r" of (\d+)", " ".join([*seeds, together])))) <= 1, name


def verdict_of(cell: str) -> str:
    """Return the verdict in a cell of the table of findings."""
    if cell.startswith(("?", "not decided")):
        return "undecided"
    return "conditional" if " of " in cell else cell


def test_citations_are_the_same_everywhere() -> None:
    assert CITATIONS % version("bilinq") in FINDINGS
    cff = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert "year: 2025" in cff and "version 4" in cff and "year = {2025}" in CITATIONS


def test_names_are_unique_words() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(name == name.lower() and " " not in name for name in NAMES)


def test_presets_compute_the_known_values_of_V() -> None:
    """57.99 and 38.35 are the public code's, 680 the bound's minimiser, 70.7 is sqrt(10 x 500): docs/maths.md."""
    problem = Synthetic().example
    weight = (7 / 4,) * 5 + (1 / 4,) * 5
    found = {name: preset.V(problem, 500, None) for name, preset in PRESETS.items()}
    assert found == pytest.approx({"paper": 680.0, "published": 57.99, "calibrated": 70.71}, abs=0.05)
    assert PRESETS["published"].V(problem, 500, weight) == pytest.approx(38.35, abs=0.005)


def test_table_is_tidy() -> None:
    table = Table([{"a": "x", "n": 1}, {"a": "y", "n": 2.5}]) + Table([{"a": "x", "m": float("nan")}])
    assert table.csv() == "a,n,m\nx,1,\ny,2.5,\nx,,\n"
    assert table.distinct("a") == ["x", "y"]
    assert table.where(a="y").last("n") == 2.5


def test_inline_pictures_follow_the_page() -> None:
    with style.applied():
        figure, (axes,) = style.panels(1, 1)
        axes.plot([1, 2], [3, 4], color=style.BLUE, label="a & b")
        style.label(axes, "Title")
        style.legend(figure, axes)
        text = svg(figure, "name")
        assert svg(figure, "name") == text
    inlined = inline(text, "name", "Title")
    for colour in (style.BLUE, style.INK, style.GREY, style.FAINT):
        assert colour not in inlined
    assert "var(--blue)" in inlined
    assert "currentColor" in inlined
    assert 'id="name-figure_1"' in inlined
    assert inlined.startswith("<svg viewBox=")
