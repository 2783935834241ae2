"""`bilinq contest`: routers tuned to the same wait on the same jobs, compared in pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from bilinq.commands.replay import fleet, read_workload
from bilinq.commands.shared import INTERRUPTED, Address, Engine, Json, Workers
from bilinq.errors import BadInput, BilinqError

if TYPE_CHECKING:
    from bilinq.routing import Router, Workload
    from bilinq.routing.contest_result import Contest
    from bilinq.traces import RoutingTable

RUNS = "runs"  # the folder, inside that of the results, with finished runs
LOAD, JOBS = 0.8, 4000  # of tables


def contest(
    source: Annotated[
        str, Argument(help="paretobandit or mmlu, a saved workload (.npz), or a table (.csv, .parquet).")
    ],
    load: Annotated[float | None, Option(help="Load of the servers. [default: 0.8; that of the file]")] = None,
    wait: Annotated[float, Option(help="Wait that every router is tuned to.")] = 5.0,
    measure: Annotated[str, Option(help="What equals it: wait (mean), p95 or sojourn (mean).")] = "wait",
    servers: Annotated[str | None, Option(help="Servers by class: a100=4,t4=8. [default: 24, split evenly]")] = None,
    seeds: Annotated[int, Option(help="Test seeds.")] = 10,
    tuning_seeds: Annotated[int, Option(help="Other seeds on which routers are tuned.")] = 3,
    number: Annotated[int, Option("--number", help="Jobs in a run of paretobandit or mmlu.")] = JOBS,
    duration: Annotated[float, Option(help="Mean duration of a job of paretobandit or mmlu.")] = 10.0,
    data: Annotated[Path | None, Option(help="Folder with the files of the real table; default: its digest.")] = None,
    arrival: Annotated[str, Option(help="Column of a table file with times of arrival.")] = "arrival",
    peers: Annotated[
        bool, Option("--peers", help="Also other libraries' bandits, with a queue price and without.")
    ] = False,
    only: Annotated[str | None, Option(help="Only these contestants, separated by semicolons.")] = None,
    curve: Annotated[bool, Option("--curve", help="Also draw reward against wait for each router.")] = False,
    jobs: Workers = None,
    engine: Engine = "processes",
    address: Address = None,
    out: Annotated[Path | None, Option(help="Folder for table, figure and report; the command resumes there.")] = None,
    json: Json = False,
) -> None:
    """Compare routers at equal waits.

    All face the same jobs; differences are paired by seed.
    """
    from bilinq.commands import tables
    from bilinq.routing.contest import contest as run

    chosen = _contestants(peers, only)
    if source in ("paretobandit", "mmlu"):
        workload = _arena(source, LOAD if load is None else load, number, servers, duration, data)
    else:
        workload = _from_file(source, load, servers, arrival)
    try:
        with tables.Bar("replays") as bar:
            found = run(
                workload, chosen, wait, seeds=seeds, tuning_seeds=tuning_seeds, measure=measure, curve=curve, jobs=jobs,
                engine=engine, address=address, out=None if out is None else out / RUNS, progress=bar,
            )  # fmt: skip
    except KeyboardInterrupt:
        kept = f"finished runs are in {out / RUNS}, run the same command to continue" if out else "nothing was kept"
        typer.echo(f"interrupted; {kept}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if out is not None:
        _write(found, out)
    if json:
        typer.echo(found.to_json(), nl=False)
    else:
        _show(found)


def _contestants(peers: bool, only: str | None) -> dict[str, Router]:
    from bilinq.arrays import one_of
    from bilinq.routing.arena import peer_contestants, usual_contestants

    known = usual_contestants()
    if peers:
        known |= peer_contestants() | peer_contestants(priced=False)
    if only is None:
        return known
    names = [one_of("only", name.strip(), tuple(known)) for name in only.split(";")]
    return {name: known[name] for name in names}


def _arena(
    name: str, load: float, jobs: int, servers: str | None, duration: float, data: Path | None
) -> Callable[[int], Workload]:
    from bilinq.routing.arena import Arena
    from bilinq.traces.routing_digest import TableDigest

    table = TableDigest.shipped(name) if data is None else _real(name, data)
    return Arena(table, load, jobs, None if servers is None else fleet(servers), duration)


def _real(name: str, folder: Path) -> RoutingTable:
    """Return the real table, with features of its texts if scikit-learn is installed."""
    from bilinq import traces

    table = traces.load_paretobandit(folder) if name == "paretobandit" else traces.load_mmlu(folder)
    try:
        return table.with_features()
    except BilinqError as error:
        if isinstance(error, BadInput):
            raise
        typer.echo(f"warning: jobs have no features; {error}", err=True)
        return table


def _from_file(source: str, load: float | None, servers: str | None, arrival: str) -> Callable[[int], Workload]:
    if Path(source).suffix.lower() not in (".npz", ".csv", ".parquet"):
        raise BadInput(f"source must be paretobandit, mmlu or a file named .npz, .csv or .parquet; got {source!r}")
    workload = read_workload(Path(source), servers, arrival)
    return (workload if load is None else workload.at_load(load)).shuffled


def _write(found: Contest, out: Path) -> None:
    from bilinq.routing.contest_report import picture

    out.mkdir(parents=True, exist_ok=True)
    found.save(out / "contest.json")
    found.to_csv(out / "contest.csv")
    found.to_json(out / "summary.json")
    (out / "contest.png").write_bytes(picture(found)[0])
    found.report(out / "report.html")


def _show(found: Contest) -> None:
    from bilinq.commands import tables
    from bilinq.routing.contest_result import MAIN

    titles, lines = found.table()
    tables.show_rows(titles[:MAIN], [line[:MAIN] for line in lines], found.title)
    tables.show_rows(["", *titles[MAIN:]], [[line[0], *line[MAIN:]] for line in lines])
    typer.echo("\n".join(found.notes))
