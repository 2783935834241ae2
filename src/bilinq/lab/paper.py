"""Redraws the paper: runs what is missing, judges the claims, and writes data, figures and the report."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from bilinq.errors import BadInput
from bilinq.experiments import PlannedRun, execute, load_run, start_workers
from bilinq.experiments.run import Progress
from bilinq.jsonable import to_json
from bilinq.lab import report, style
from bilinq.lab.claims import Claim
from bilinq.lab.figure import Figure, ReportOptions, Table
from bilinq.lab.figures import find
from bilinq.lab.report import About, Drawn


@dataclass(frozen=True)
class Paper:
    """The result of `redraw`: names of figures, claims, and `out` with report.html, claims.json, data, figures and runs."""

    out: Path
    figures: tuple[str, ...]
    claims: tuple[Claim, ...]
    seconds: float

    def document(self) -> dict[str, Any]:
        """Return the result for programs."""
        claims = [claim.document() for claim in self.claims]
        return {"out": self.out, "figures": self.figures, "seconds": self.seconds, "claims": claims}


class Judged(NamedTuple):
    """The table and the claims of a figure, and the computing time of each run by its key."""

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
    fresh: bool = False,
    engine: str = "processes",
    address: str | None = None,
) -> Paper:
    """Make the named figures (default: all) and those given as classes, with data, claims and a report, in `out`.

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
    chosen = [figure(options) for figure in find(figures)]
    wanted = {figure.name: figure.runs() for figure in chosen}
    runs = sorted((run for mine in wanted.values() for run in mine.values()), key=lambda run: run.work, reverse=True)
    with start_workers(engine, workers, address) as team:
        execute(runs, folder / "runs", team, progress, fresh=fresh)  # long runs first
        judged: list[Judged] = []
        tables = _judge_each(chosen, wanted, folder / "runs", judged)
        pictures = list(team.map(render, chosen, tables))  # drawn while others are judged
    parts = zip(chosen, judged, pictures, strict=True)
    drawn = [Drawn(figure, one.table, one.claims, png, svg) for figure, one, (png, svg) in parts]
    spent = {key: seconds for one in judged for key, seconds in one.seconds.items()}
    about = About.of(options, spent, time.perf_counter() - began)
    claims = tuple(claim for one in drawn for claim in one.claims)
    assert len({claim.id for claim in claims}) == len(claims), "two claims share an id"
    _write(folder, drawn, claims, about)
    return Paper(folder, tuple(figure.name for figure in chosen), claims, time.perf_counter() - began)


def render(figure: Figure, table: Table) -> tuple[bytes, str]:
    """Return the drawing of a table as PNG and SVG."""
    with style.applied():
        drawing = figure.draw(table)
        style.settle(drawing)
        return style.png(drawing), style.svg(drawing, figure.name)


def _judge(figure: Figure, runs: Mapping[str, PlannedRun], folder: Path) -> Judged:
    """Return a figure's table and claims, without the records, which may be large."""
    records = {name: load_run(run, folder) for name, run in runs.items()}
    claims = (replace(claim, figure=figure.name) for claim in figure.claims(records))
    seconds = {run.key: records[name].seconds for name, run in runs.items()}
    return Judged(figure.table(records), tuple(claims), seconds)


def _judge_each(
    figures: Sequence[Figure], wanted: Mapping[str, Mapping[str, PlannedRun]], folder: Path, judged: list[Judged]
) -> Iterator[Table]:
    """Yield the tables of figures one by one, and append all results to `judged`."""
    for figure in figures:
        judged.append(_judge(figure, wanted[figure.name], folder))
        yield judged[-1].table


def _write(folder: Path, drawn: Sequence[Drawn], claims: Sequence[Claim], about: About) -> None:
    files: dict[str, str | bytes] = {}
    for one in drawn:
        name = one.figure.name
        files |= {f"data/{name}.csv": one.table.csv(), f"figures/{name}.png": one.png, f"figures/{name}.svg": one.svg}
    files["claims.json"] = to_json(about.settings | {"claims": [claim.document() for claim in claims]}, indent=2) + "\n"
    files["report.html"] = report.page(drawn, about)
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written; {error.strerror}") from None
