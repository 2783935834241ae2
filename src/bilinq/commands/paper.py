"""`bilinq paper`: redraw the paper and judge its claims."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from bilinq.commands.shared import INTERRUPTED, Address, Engine, Json, Workers, print_json


def paper(
    figure: Annotated[list[str] | None, Argument(help="Names of figures; default: all.")] = None,
    out: Annotated[Path, Option(help="Folder for report, figures, data and finished runs.")] = Path("out/paper"),
    preset: Annotated[
        str, Option(help="Settings that the figures show: published (the authors' code), paper or calibrated.")
    ] = "published",
    quick: Annotated[bool, Option("--quick", help="Finish in seconds, with few replications and points.")] = False,
    replications: Annotated[int | None, Option(help="Instances per mean; default: 100, or 5 with --quick.")] = None,
    seed: Annotated[int, Option(help="Seed; the same seed gives the same data, byte for byte.")] = 1,
    seeds: Annotated[int, Option(help="Seeds on which claims are judged together, from --seed on.")] = 1,
    workers: Workers = None,
    fresh: Annotated[bool, Option("--fresh", help="Run everything again, even finished runs.")] = False,
    engine: Engine = "processes",
    address: Address = None,
    json: Json = False,
) -> None:
    """Redraw the paper's figures and judge its claims in a report."""
    from bilinq.experiments.workers import preload

    if engine == "processes" and workers != 1:
        preload("bilinq.lab.paper")
    from bilinq.commands import tables
    from bilinq.lab.figure import ReportOptions
    from bilinq.lab.paper import redraw

    options = ReportOptions(preset, replications, quick, seed)
    try:
        with tables.Bar("slots") as bar:
            made = redraw(
                options, out, figure or None, seeds=seeds, workers=workers, progress=bar, fresh=fresh, engine=engine,
                address=address,
            )  # fmt: skip
    except KeyboardInterrupt:
        typer.echo(f"interrupted; finished runs are in {out}, run the same command to continue", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json(made.document())
        return
    if made.claims:
        ordered = sorted(made.claims, key=lambda claim: claim.ours)
        rows = [(claim.result, claim.statement, "our own" if claim.ours else claim.where) for claim in ordered]
        tables.show_rows(("verdict", "claim of the paper, or our own observation", "where"), rows, left=3)
    typer.echo(f"report: {made.out / 'report.html'} ({made.seconds:.0f} s)")
