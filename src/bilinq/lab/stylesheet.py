"""The style sheet of the report."""

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
"""Colours are variables, so that figures inside the page follow them; see `bilinq.lab.picture.ADAPTED`."""
