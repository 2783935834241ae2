"""The report: one HTML page with all figures, claims and measured effects."""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from importlib.metadata import version
from typing import Any

from bilinq.lab import style
from bilinq.lab.claims import Claim, Finding, Verdict
from bilinq.lab.figure import ReportOptions
from bilinq.lab.presets import PRESETS

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #22262b; --soft: #5c646d; --line: #dfe3e7; --wash: #f5f7f8; --link: #00609a;
  --grey: #7b828a; --faint: #dfe3e7; --blue: #0072b2; --orange: #d55e00; --green: #009e73; --sky: #56b4e9;
  --amber: #e69f00; --pink: #cc79a7;
  --good: #0b6b4f; --good-wash: #dff3ec; --half: #7a5300; --half-wash: #fbeecf; --open: #4c545c; --open-wash: #e9ecef;
  --bad: #a12a12; --bad-wash: #fbe3dc;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --ink: #e4e7ea; --soft: #a3abb3; --line: #333a41; --wash: #1c2024; --link: #6cb8ee;
    --grey: #8f979f; --faint: #2d333a; --blue: #4aa8e0; --orange: #f08345; --green: #2cc49a; --sky: #8ccdf2;
    --amber: #f0b93a; --pink: #e29cc4;
    --good: #6fd9b6; --good-wash: #12362b; --half: #f0c969; --half-wash: #3b2f10; --open: #b4bcc4; --open-wash: #2a3036;
    --bad: #f69a84; --bad-wash: #44201a;
  }
}
* { box-sizing: border-box }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100% }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", "Helvetica Neue", "DejaVu Sans", sans-serif }
a { color: var(--link); text-underline-offset: .15em }
h1 { font-size: 2.1rem; line-height: 1.15; margin: .2rem 0 .6rem; letter-spacing: -.01em }
h2 { font-size: 1.35rem; margin: 0 0 .8rem; line-height: 1.3 }
p { margin: 0 0 .8rem; max-width: 46rem }
section { margin: 3rem 0; scroll-margin-top: 5.5rem }
.kicker { text-transform: uppercase; letter-spacing: .09em; font-size: .78rem; color: var(--soft); margin: 0 }
.lead { font-size: 1.12rem }
.where { color: var(--soft); font-size: .9rem }
h2 + .where { margin-top: -.7rem }
.quick { border-left: 3px solid var(--amber); padding-left: .8rem; color: var(--soft) }
.tally { display: flex; flex-wrap: wrap; gap: .5rem 1.4rem; padding: 0; margin: 0; list-style: none }
.tally b { font-size: 1.35rem; margin-right: .3rem; font-variant-numeric: tabular-nums }
nav { position: sticky; top: 0; z-index: 1; display: flex; gap: 1.2rem; white-space: nowrap; overflow-x: auto;
  scrollbar-width: thin; margin: 1.6rem -1.25rem 0; padding: .7rem 1.25rem; background: var(--paper);
  border-bottom: 1px solid var(--line) }
nav a { text-decoration: none; font-size: .92rem }
nav a:hover { text-decoration: underline }
.chip { display: inline-block; padding: .08rem .55rem; border-radius: 1rem; font-size: .8rem; font-weight: 600;
  line-height: 1.45 }
.holds { color: var(--good); background: var(--good-wash) }
.conditional { color: var(--half); background: var(--half-wash) }
.unsupported { color: var(--open); background: var(--open-wash) }
.contradicted { color: var(--bad); background: var(--bad-wash) }
table { border-collapse: collapse; width: 100%; font-size: .88rem }
td { vertical-align: baseline; padding: .2rem .7rem .2rem 0; line-height: 1.4 }
th { text-align: left; font-size: .8rem; color: var(--soft); font-weight: 600; padding: .3rem .7rem .3rem 0 }
.glance { font-size: .95rem } .glance td { border-top: 1px solid var(--line); padding: .45rem .7rem .45rem 0 }
.glance td:first-child { width: 45% } .glance td:nth-child(n+3) { white-space: nowrap }
.details { margin-top: 1.2rem }
.details tbody::after { content: ""; display: block; height: 1.3rem }
.claim { scroll-margin-top: 5rem }
.claim td { padding: 1rem 0 .5rem; border-top: 1px solid var(--line) }
.claim:target .statement b { background: var(--half-wash) }
.statement { margin: 0; font-size: 1.05rem; max-width: none }
.statement .chip { margin-left: .3rem; vertical-align: .05rem }
.test, .note { margin: .2rem 0 0; font-size: .88rem; max-width: 50rem }
.test { color: var(--soft) }
.finding td { font-variant-numeric: tabular-nums }
.finding td:first-child { width: 32% } .finding td:nth-child(3) { width: 132px }
.finding b { white-space: nowrap }
.finding td:last-child { width: 7.6rem; padding-right: 0; white-space: nowrap; text-align: right }
.unit { color: var(--soft); font-size: .78rem }
.whisker { width: 120px; height: 16px; vertical-align: -3px; overflow: visible }
.whisker rect { fill: var(--good-wash) }
.whisker path { stroke: var(--ink); stroke-width: 1.6 }
.whisker circle { fill: var(--ink) }
figure { margin: 0 }
.picture { overflow-x: auto; margin: 0 -.3rem }
.picture svg { display: block; width: 100%; min-width: 37rem; height: auto; color: var(--ink) }
figcaption { margin-top: .7rem; max-width: 48rem }
.files { font-size: .88rem; white-space: nowrap }
.files a + a { margin-left: .5rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.4rem; margin: 0 }
dt { color: var(--soft) }
dd { margin: 0 }
@media (max-width: 44rem) {
  body { padding-top: 1.4rem } h1 { font-size: 1.7rem }
  thead { display: none } table, tbody, tr, td { display: block; width: auto !important; text-align: left !important }
  .finding { border-left: 3px solid var(--line); padding-left: .8rem; margin: .6rem 0 }
  .finding td, .glance td { padding: .08rem 0 } .glance td { border: 0 }
  .glance tr { border-top: 1px solid var(--line); padding: .6rem 0 } .statement .chip { margin-left: 0 }
  dl { grid-template-columns: 1fr } dd { margin-bottom: .5rem }
}
@media print {
  :root { color-scheme: light; --paper: #fff; --ink: #000; --soft: #444 }
  body { max-width: none; padding: 0; font-size: 10.5pt }
  nav { display: none } section { margin: 1.6rem 0 }
  figure, .details tbody, tr { break-inside: avoid } h2 { break-after: avoid }
  .picture svg { min-width: 0 } .chip { border: 1px solid currentColor; background: none }
  a { color: inherit; text-decoration: none }
}
"""
"""Colours are variables, so that figures inside the page follow them; see `bilinq.lab.style.ADAPTED`."""


WIDTH, HEIGHT, EDGE = 120.0, 16.0, 6.0


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


CLASSES = {
    Verdict.HOLDS: "holds",
    Verdict.CONDITIONAL: "conditional",
    Verdict.UNSUPPORTED: "unsupported",
    Verdict.CONTRADICTED: "contradicted",
}
"""The CSS class of each verdict."""
SHORT = {verdict: verdict.value.removesuffix(" at these settings") for verdict in Verdict}
"""The text of a verdict under a single condition."""
TITLE = "The paper, redrawn"


@dataclass(frozen=True)
class Drawn:
    """A figure ready for the report: texts, data, pictures and the claims that it tests."""

    name: str
    title: str
    where: str
    caption: str
    csv: str
    png: bytes
    svg: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class About:
    """What was run: `settings` decide the numbers, `facts` describe how they were made."""

    settings: dict[str, Any]
    facts: dict[str, str]

    @classmethod
    def of(cls, options: ReportOptions, spent: Mapping[str, float], seconds: float) -> About:
        """Return the description of a report, given the computing time of each run."""
        settings = {
            "preset": options.preset, "replications": options.count, "quick": options.quick, "seed": options.seed,
            "bilinq": version("bilinq"),
        }  # fmt: skip
        packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "numba", "matplotlib"))
        facts = {
            "Settings shown": f"{options.preset}, {options.shown.text}; claims on figures of the paper use all presets",
            "Replications": f"{options.count} random instances for every mean{', a quick report' if options.quick else ''}",
            "Bands and intervals": "95 %, Student's t over replications; ratios, slopes and the like by the jackknife",
            "Seed": str(options.seed),
            "Simulations": f"{len(spent)}, {sum(spent.values()) / 60:.1f} minutes of computing",
            "This report": f"took {seconds / 60:.1f} minutes on {os.cpu_count()} cores, "
            f"finished {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
            "Versions": f"bilinq {version('bilinq')}, Python {platform.python_version()}, {packages}",
        }
        return cls(settings, facts)


def page(drawn: Sequence[Drawn], about: About) -> str:
    """Return the whole page."""
    claims = [claim for figure in drawn for claim in figure.claims]
    sections = [_claims(claims)] if claims else []
    sections += [_figure(figure) for figure in drawn]
    body = "\n".join([_header(claims, about), _contents(drawn), "<main>", *sections, _about(about), "</main>"])
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{TITLE}</title><style>{STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _header(claims: Sequence[Claim], about: About) -> str:
    counts = Counter(claim.verdict for claim in claims)
    chips = "".join(f"<li><b>{counts[verdict]}</b> {_chip(verdict)}</li>" for verdict in Verdict if counts[verdict])
    tally = f'<p>Of {len(claims)} claims:</p><ul class="tally">{chips}</ul>' if claims else ""
    quick = (
        "<p class=quick>A quick report with few replications: intervals are wide, and many claims remain undecided.</p>"
    )
    return (
        f"<header><p class=kicker>bilinq lab</p><h1>{TITLE}</h1>"
        "<p class=lead>Kim and Vojnović, <cite>Learning to Schedule in Parallel-Server Queues with Stochastic Bilinear "
        "Rewards</cite>: every figure from fresh simulations, every claim judged from their numbers.</p>"
        f"{quick if about.settings['quick'] else ''}{tally}</header>"
    )


def _contents(drawn: Sequence[Drawn]) -> str:
    links = [("claims", "Claims")] if any(figure.claims for figure in drawn) else []
    links += [(f"figure-{figure.name}", figure.title) for figure in drawn] + [("about", "What was run")]
    return "<nav>" + "".join(f'<a href="#{place}">{escape(text)}</a>' for place, text in links) + "</nav>"


def _claims(claims: Sequence[Claim]) -> str:
    """Return the table of all claims; the sections of the figures have the details."""
    number = sum(len(claim.findings) for claim in claims)
    rows = "".join(
        f'<tr data-claim="{claim.id}"><td><a href="#claim-{claim.id}">{escape(claim.statement)}</a></td>'
        f"<td class=where>{escape(claim.where)}</td><td>{_share(claim)}</td><td>{_chip(claim.verdict)}</td></tr>"
        for claim in claims
    )
    return (
        '<section id="claims"><h2>Claims</h2><p>A claim is true for some range of an effect. Under a condition it '
        "<b>holds</b> if the whole 95 % interval of the effect is inside that range, it is <b>contradicted</b> if the "
        "whole interval is outside, and otherwise it is <b>not supported</b>. The measured effects are below the figure "
        f"that tests the claim. Of {number} intervals about {number * 0.05:.0f} miss the true value by chance.</p>"
        "<table class=glance><thead><tr><th>Claim</th><th>In the paper</th><th>Conditions</th><th>Verdict</th></tr></thead>"
        f'<tbody>{rows}</tbody></table><p class=files><a href="claims.json">claims.json</a></p></section>'
    )


def _share(claim: Claim) -> str:
    held = sum(finding.verdict is Verdict.HOLDS for finding in claim.findings)
    return f"{held} of {len(claim.findings)} hold"


def _claim(claim: Claim) -> str:
    """Return a claim as a group of rows: the claim first, then its conditions."""
    note = f"<p class=note>{escape(claim.note)}</p>" if claim.note else ""
    first = (
        f'<tr class="claim" id="claim-{claim.id}"><td colspan="4"><p class=statement>'
        f"<b>{escape(claim.statement)}</b> {_chip(claim.verdict)}</p>"
        f"<p class=test>{escape(claim.where)}. {escape(claim.test)}</p>{note}</td></tr>"
    )
    return f"<tbody>{first}{''.join(map(_finding, claim.findings))}</tbody>"


def _finding(finding: Finding) -> str:
    detail = f"{finding.effect.unit}; claimed {finding.claimed}".removeprefix("; ")
    return (
        f'<tr class="finding"><td>{escape(finding.condition)}</td><td><b>{escape(str(finding.effect))}</b> '
        f"<span class=unit>{escape(detail)}</span></td><td>{whisker(finding)}</td>"
        f"<td>{_chip(finding.verdict, SHORT[finding.verdict])}</td></tr>"
    )


def _chip(verdict: Verdict, text: str = "") -> str:
    return f'<span class="chip {CLASSES[verdict]}">{escape(text or verdict.value)}</span>'


def _figure(figure: Drawn) -> str:
    drawing = style.inline(figure.svg, figure.name, escape(figure.title, quote=True))
    claims = "".join(map(_claim, figure.claims))
    files = " ".join(
        f'<a href="{folder}/{figure.name}.{kind}">{kind.upper()}</a>'
        for folder, kind in (("data", "csv"), ("figures", "png"), ("figures", "svg"))
    )
    return (
        f'<section id="figure-{figure.name}"><h2>{escape(figure.title)}</h2>'
        f"<p class=where>In the paper: {escape(figure.where)}</p>"
        f'<figure><div class="picture">{drawing}</div><figcaption>{escape(figure.caption)} '
        f"<span class=files>{files}</span></figcaption></figure><table class=details>{claims}</table></section>"
    )


def _about(about: About) -> str:
    facts = about.facts | {f"Preset {preset.name}": f"{preset.text}: {preset.detail}" for preset in PRESETS.values()}
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return f'<section id="about"><h2>What was run</h2><dl>{rows}</dl></section>'
