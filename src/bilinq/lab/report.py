"""The report: one HTML page with all figures, claims and measured effects."""

import math
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any, Self

from bilinq import style
from bilinq.lab.claims import ALPHA, Claim, Finding, Verdict
from bilinq.lab.figure import Figure, ReportOptions, Table
from bilinq.lab.presets import PRESETS

PAGE = Template(Path(__file__).with_name("report.html").read_text("utf-8"))
QUICK = "<p class=quick>A quick report with few replications: intervals are wide, and many claims remain undecided.</p>"
CITATIONS = """@article{kim2021scheduling,
  title = {Learning to Schedule in Parallel-Server Queues with Stochastic Bilinear Rewards},
  author = {Kim, Jung-hun and Vojnović, Milan},
  journal = {arXiv preprint arXiv:2112.06362},
  year = {2025},
  note = {Version 4; versions 1 to 3, from 2021 on, as ``Scheduling Servers with Stochastic Bilinear Rewards''}
}

@software{bilinq,
  title = {bilinq: a scheduler that learns which kind of job pays best on which kind of server},
  author = {{The authors of bilinq}},
  version = {%s}
}"""
WIDTH, HEIGHT, EDGE = 120.0, 16.0, 6.0  # size of the small picture of an interval, and its margin


@dataclass(frozen=True)
class Drawn:
    """A figure ready for the report: its data, the claims that it tests, and its pictures."""

    figure: Figure
    table: Table
    claims: tuple[Claim, ...]
    png: bytes
    svg: str


@dataclass(frozen=True)
class About:
    """What was run: `settings` decide the numbers, `facts` describe how they were made."""

    settings: dict[str, Any]
    facts: dict[str, str]

    @classmethod
    def of(cls, options: ReportOptions, seeds: int, spent: Mapping[str, float], seconds: float) -> Self:
        """Return the description of a report, given the computing time of each run."""
        settings = {
            "preset": options.preset, "replications": options.count, "quick": options.quick, "seed": options.seed,
            "seeds": seeds, "bilinq": version("bilinq"),
        }  # fmt: skip
        packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "numba", "matplotlib"))
        facts = {
            "Settings shown": f"{options.preset}, {options.shown.text}; claims on figures of the paper use all presets",
            "Replications": f"{options.count} random instances for every mean{', a quick report' if options.quick else ''}",
            "Bands and intervals": "95 %, Student's t over replications; ratios, slopes and the like by the jackknife",
            "Seeds": f"claims on {seeds} of them from {options.seed} on, figures on the first",
            "Simulations": f"{len(spent)}, {sum(spent.values()) / 60:.1f} minutes of computing",
            "This report": f"took {seconds / 60:.1f} minutes on {os.cpu_count()} cores, "
            f"finished {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
            "Versions": f"bilinq {version('bilinq')}, Python {platform.python_version()}, {packages}",
        }
        return cls(settings, facts)


def page(drawn: Sequence[Drawn], about: About) -> str:
    """Return the whole page."""
    claims = [claim for one in drawn for claim in one.claims]
    links = {"claims": "Claims"} if claims else {}
    links |= {f"figure-{one.figure.name}": one.figure.title for one in drawn} | {
        "cite": "How to cite",
        "about": "What was run",
    }
    sections = [_claims(claims)] if claims else []
    return PAGE.substitute(
        style=Path(__file__).with_name("report.css").read_text("utf-8"),
        quick=QUICK if about.settings["quick"] else "",
        tally=_tally(claims) if claims else "",
        links="".join(f'<a href="#{place}">{escape(text)}</a>' for place, text in links.items()),
        sections="\n".join([*sections, *map(_figure, drawn), _cite(), _about(about)]),
    )


def _tally(claims: Sequence[Claim]) -> str:
    counts = Counter(claim.verdict for claim in claims if not claim.ours)
    chips = "".join(f"<li><b>{counts[verdict]}</b> {_chip(verdict)}</li>" for verdict in Verdict if counts[verdict])
    return f'<p>Of {counts.total()} claims of the paper:</p><ul class="tally">{chips}</ul>'


def verdicts(claims: Sequence[Claim]) -> str:
    """Return the verdicts as a Markdown table: each seed alone, and all seeds together."""
    numbers = [str(seed) for seed, _ in claims[0].seeds]
    rows = [["Claim", *(f"Seed {seed}" for seed in numbers), "All seeds"], ["---"] * (len(numbers) + 2)]
    for claim in sorted(claims, key=lambda claim: claim.ours):
        name = f"`{claim.id}`{' (ours)' if claim.ours else ''}"
        together = claim.result.removeprefix(f"{Verdict.CONDITIONAL.value}: ")  # counts say so
        rows.append([name, *(_brief(result) for _, result in claim.seeds), together])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _brief(result: str) -> str:
    """Return a verdict with the number of conditions that hold: "holds", "4 of 16", "contradicted", "? 3 of 5"."""
    verdict, _, counts = result.partition(": ")
    mark = "? " if verdict == Verdict.UNDECIDED.value else ""
    return f"{mark}{counts.partition(' hold')[0]}" if counts else "?" if mark else verdict


def _claims(claims: Sequence[Claim]) -> str:
    """Return the tables of all claims and of our observations; the sections of the figures have the details."""
    number = sum(not finding.effect.exact for claim in claims for finding in claim.findings)
    paper, ours = ([claim for claim in claims if claim.ours is own] for own in (False, True))
    text = (
        '<section id="claims"><h2>Claims</h2><p>A claim is true for some range of an effect. Under a condition it '
        "<b>holds</b> if the effect is inside that range, and is <b>contradicted</b> if it is outside, where a test rejects "
        "the opposite. Otherwise it is <b>not decided</b>. A claim that holds only under stated conditions is contradicted "
        f"under others. The {number} tests are one family: by Holm's method the chance that any of them is wrong is at most "
        f"{ALPHA:.0%}. Conditions on which seeds disagree are not decided. The measured effects, with plain 95 % intervals, "
        "are below the figure that tests the claim.</p>"
    )
    text += _glance(paper, "Claim", "In the paper") if paper else ""
    if ours:
        text += "<h3>Our own observations</h3><p>Statements that the paper does not make, tested in the same way.</p>"
        text += _glance(ours, "Observation", "About")
    return f'{text}<p class=files><a href="claims.json">claims.json</a> <a href="verdicts.md">verdicts.md</a></p></section>'


def _glance(claims: Sequence[Claim], what: str, where: str) -> str:
    rows = "".join(
        f'<tr data-claim="{claim.id}"><td><a href="#claim-{claim.id}">{escape(claim.statement)}</a></td>'
        f"<td class=where>{escape(claim.where)}</td>"
        f"<td>{claim.counts[Verdict.HOLDS]} of {len(claim.findings)} hold</td>"
        f'<td><a href="#claim-{claim.id}">{_chip(claim.verdict)}</a></td></tr>'
        for claim in claims
    )
    head = f"<tr><th>{what}</th><th>{where}</th><th>Conditions</th><th>Verdict</th></tr>"
    return f"<table class=glance><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _claim(claim: Claim) -> str:
    """Return a claim as a group of rows: the claim first, then its conditions."""
    note = f"<p class=note>{escape(claim.note)}</p>" if claim.note else ""
    first = (
        f'<tr class="claim" id="claim-{claim.id}"><td colspan="4"><p class=statement>'
        f"<b>{escape(claim.statement)}</b> {_chip(claim.verdict, claim.result)}</p>"
        f"<p class=test>{'Our own observation' if claim.ours else escape(claim.where)}. {escape(claim.test)}</p>{note}"
        f"{_seeds(claim)}</td></tr>"
    )
    return f"<tbody>{first}{''.join(map(_finding, claim.findings))}</tbody>"


def _seeds(claim: Claim) -> str:
    if len(claim.seeds) < 2:
        return ""
    alone = "; ".join(f"seed {seed}: {escape(result)}" for seed, result in claim.seeds)
    return f"<p class=test>Each seed alone: {alone}.</p>"


def _finding(finding: Finding) -> str:
    detail = f"{finding.effect.unit}; claimed {finding.claimed}".removeprefix("; ")
    return (
        f'<tr class="finding"><td>{escape(finding.condition)}</td><td><b>{escape(str(finding.effect))}</b> '
        f"<span class=unit>{escape(detail)}</span></td><td>{whisker(finding)}</td>"
        f"<td>{_chip(finding.verdict)}</td></tr>"
    )


def whisker(finding: Finding) -> str:
    """Return an SVG with the claimed range shaded, the interval as a line and the value as a dot; empty if no interval."""
    effect, claimed = finding.effect, finding.claimed
    if not (math.isfinite(effect.low) and math.isfinite(effect.high)):
        return ""
    marks = [effect.low, effect.high, *(end for end in (claimed.low, claimed.high) if math.isfinite(end))]
    least, most = min(marks), max(marks)
    scale = (WIDTH - 2 * EDGE) / (most - least or 1.0)

    def place(value: float) -> float:
        return min(max(EDGE + (value - least) * scale, 0.0), WIDTH)

    left, right = place(claimed.low), place(claimed.high)
    low, high, middle = place(effect.low), place(effect.high), HEIGHT / 2
    return (
        f'<svg class="whisker" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" aria-hidden="true">'
        f'<rect x="{left:.1f}" width="{right - left:.1f}" height="{HEIGHT:g}" rx="2"/>'
        f'<path d="M{low:.1f} {middle:g}H{high:.1f}"/>'
        f'<circle cx="{place(effect.value):.1f}" cy="{middle:g}" r="3"/></svg>'
    )


def _chip(verdict: Verdict, text: str = "") -> str:
    return f'<span class="chip {verdict.name.lower()}">{escape(text or verdict.value)}</span>'


def _figure(drawn: Drawn) -> str:
    figure = drawn.figure
    drawing = style.inline(drawn.svg, figure.name, escape(figure.title, quote=True))
    claims = "".join(map(_claim, drawn.claims))
    files = " ".join(
        f'<a href="{folder}/{figure.name}.{kind}">{kind.upper()}</a>'
        for folder, kind in (("data", "csv"), ("figures", "png"), ("figures", "svg"))
    )
    return (
        f'<section id="figure-{figure.name}"><h2>{escape(figure.title)}</h2>'
        f"<p class=where>In the paper: {escape(figure.where)}</p>"
        f'<figure><div class="picture">{drawing}</div><figcaption><b>{escape(figure.see)}</b> '
        f"{escape(figure.caption(drawn.table))} "
        f"<span class=files>{files}</span></figcaption></figure><table class=details>{claims}</table></section>"
    )


def _cite() -> str:
    text = "The paper, and bilinq itself; CITATION.cff has the same for programs."
    entries = escape(CITATIONS % version("bilinq"))
    return f'<section id="cite"><h2>How to cite</h2><p>{text}</p><pre>{entries}</pre></section>'


def _about(about: About) -> str:
    facts = about.facts | {f"Preset {preset.name}": f"{preset.text}: {preset.detail}" for preset in PRESETS.values()}
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return f'<section id="about"><h2>What was run</h2><dl>{rows}</dl></section>'
