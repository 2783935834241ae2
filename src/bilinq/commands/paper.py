"""`bilinq paper`: redraw the paper and judge its claims."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from bilinq.lab.claims import Claim

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def paper(
    figure: Annotated[list[str] | None, typer.Argument(help="Names of figures; all unless given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for report, figures, data and finished runs.")] = Path("out/paper"),
    preset: Annotated[
        str, typer.Option(help="Settings that figures show: published (the authors' code), paper or calibrated.")
    ] = "published",
    quick: Annotated[
        bool, typer.Option("--quick", help="A look in a few seconds: few replications and points.")
    ] = False,
    replications: Annotated[int | None, typer.Option(help="Instances behind each mean; 100, or 5 if quick.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes of data.")] = 1,
    workers: Annotated[int | None, typer.Option(help="Processes; one for each core unless given.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what is finished already.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs instead of a table for people.")
    ] = False,
) -> None:
    """Redraw the paper's figures and judge its claims in a report."""
    from bilinq.experiments.processes import get_ready

    if workers != 1:
        get_ready("bilinq.lab.paper")
    from bilinq.commands import tables
    from bilinq.jsonable import to_json
    from bilinq.lab.figure import Options
    from bilinq.lab.paper import redraw

    options = Options(preset, replications, quick, seed)
    try:
        with tables.Bar("thousand slots") as bar:
            made = redraw(options, out, figure or None, workers=workers, progress=bar, fresh=fresh)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; finished runs are in {out}, run the same command to go on", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if json:
        typer.echo(to_json(made.document(), indent=2))
        return
    if made.claims:
        tables.show(_claims_table(made.claims))
    typer.echo(f"report: {made.out / 'report.html'} ({made.seconds:.0f} s)")


def _claims_table(claims: "Sequence[Claim]") -> "Table":
    from rich.table import Table

    table = Table("verdict", "claim of the paper", "where")
    for claim in claims:
        table.add_row(claim.verdict.value, claim.statement, claim.where)
    return table
