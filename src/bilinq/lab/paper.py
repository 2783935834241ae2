"""Redraws the paper: runs what is missing, judges the claims, and writes data, figures and the report."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from bilinq import style
from bilinq.arrays import count
from bilinq.errors import BadInput
from bilinq.experiments import execute, load_run, start_workers
from bilinq.experiments.run import Progress
from bilinq.jsonable import to_json
from bilinq.lab import report
from bilinq.lab.claims import Claim, over_seeds
from bilinq.lab.figure import Figure, ReportOptions, Table
from bilinq.lab.figures import find
from bilinq.lab.report import About, Drawn


@dataclass(frozen=True)
class Paper:
    """The result of `redraw`: names of figures, claims, and `out` with report.html, claims.json, verdicts.md, data, figures
    and runs.
    """

    out: Path
    figures: tuple[str, ...]
    claims: tuple[Claim, ...]
    seconds: float

    def document(self) -> dict[str, Any]:
        """Return the result for programs."""
        claims = [claim.document() for claim in self.claims]
        return {"out": self.out, "figures": self.figures, "seconds": self.seconds, "claims": claims}


class Judged(NamedTuple):
    """The table and the claims of a figure on one seed, and the computing time of each run by its key."""

    table: Table
    claims: tuple[Claim, ...]
    seconds: dict[str, float]


def redraw(
    options: ReportOptions,
    out: str | PathLike[str],
    figures: Sequence[str | type[Figure]] | None = None,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    seeds: int = 1,
    fresh: bool = False,
    engine: str = "processes",
    address: str | None = None,
) -> Paper:
    """Make the named figures (default: all) and those given as classes, with data, claims and a report, in `out`.

    Claims are judged on `seeds` seeds together, from that of the options on; figures show the first.

    Runs that `out` contains already, made with the same settings by the same code, are not repeated unless `fresh`. With
    the same options all files except the report, which says how long it took, have the same bytes.

    Parameters
    ----------
    progress : callable, optional
        Called with the slots done and in all, where each replication counts.
    engine, workers, address
        Where the simulations run, see `bilinq.experiments.start_workers`. The results are the same, bit for bit.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C; finished runs are kept, and the next call continues from there.
    """
    began, folder = time.perf_counter(), Path(out)
    first, *others = ([figure(replace(options, seed=options.seed + k)) for figure in find(figures)]
                      for k in range(count("seeds", seeds)))  # fmt: skip
    runs = (run for chosen in (first, *others) for figure in chosen for run in figure.runs().values())
    with start_workers(engine, workers, address) as team:
        execute(sorted(runs, key=lambda run: run.work, reverse=True), folder / "runs", team, progress, fresh=fresh)
        judged: list[Judged] = []
        tables = _judge_each(first, folder / "runs", judged)
        pictures = list(team.map(render, first, tables))  # drawn while others are judged
        again = [list(team.map(judge, chosen, [folder / "runs"] * len(chosen))) for chosen in others]
    claims = _over_seeds(options.seed, [judged, *again])
    mine = {figure.name: tuple(claim for claim in claims if claim.figure == figure.name) for figure in first}
    parts = zip(first, judged, pictures, strict=True)
    drawn = [Drawn(figure, one.table, mine[figure.name], png, svg) for figure, one, (png, svg) in parts]
    spent = {key: seconds for each in (judged, *again) for one in each for key, seconds in one.seconds.items()}
    about = About.of(options, seeds, spent, time.perf_counter() - began)
    _write(folder, drawn, claims, about)
    return Paper(folder, tuple(figure.name for figure in first), claims, time.perf_counter() - began)


def render(figure: Figure, table: Table) -> tuple[bytes, str]:
    """Return the drawing of a table as PNG and SVG."""
    with style.applied():
        drawing = figure.draw(table)
        style.settle(drawing)
        return style.png(drawing), style.svg(drawing, figure.name)


def judge(figure: Figure, folder: Path, table: bool = False) -> Judged:
    """Return the claims of a figure, and its table if wanted, without the records, which may be large."""
    runs = figure.runs()
    records = {name: load_run(run, folder) for name, run in runs.items()}
    claims = (replace(claim, figure=figure.name) for claim in figure.claims(records))
    seconds = {run.key: records[name].seconds for name, run in runs.items()}
    return Judged(figure.table(records) if table else Table([]), tuple(claims), seconds)


def _judge_each(figures: Sequence[Figure], folder: Path, judged: list[Judged]) -> Iterator[Table]:
    """Yield the tables of figures one by one, and append all results to `judged`."""
    for figure in figures:
        judged.append(judge(figure, folder, table=True))
        yield judged[-1].table


def _over_seeds(first: int, judged: Sequence[Sequence[Judged]]) -> tuple[Claim, ...]:
    """Return all claims, judged on the seeds from `first` on."""
    by_seed = {first + k: [claim for one in each for claim in one.claims] for k, each in enumerate(judged)}
    claims = over_seeds(by_seed)
    assert len({claim.id for claim in claims}) == len(claims), "two claims share an id"
    return claims


def _write(folder: Path, drawn: Sequence[Drawn], claims: Sequence[Claim], about: About) -> None:
    files: dict[str, str | bytes] = {}
    for one in drawn:
        name = one.figure.name
        files |= {f"data/{name}.csv": one.table.csv(), f"figures/{name}.png": one.png, f"figures/{name}.svg": one.svg}
    files["claims.json"] = to_json(about.settings | {"claims": [claim.document() for claim in claims]}, indent=2) + "\n"
    if claims:
        files["verdicts.md"] = report.verdicts(claims)
    files["report.html"] = report.page(drawn, about)
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written; {error.strerror}") from None
