"""`bilinq sweep`: every cell of a grid of problems and policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from bilinq.commands.shared import INTERRUPTED, Address, Engine, Json, Workers, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from bilinq.experiments.sweep import Result

SHOWN = ("regret", "queue", "holding_cost", "wait")  # the measures in the table of a sweep


def sweep(
    file: Annotated[Path, Argument(help="A sweep in TOML; see docs/howto-sweep.md.")],
    out: Annotated[Path | None, Option(help="Folder for the results. [default: out/NAME-OF-FILE]")] = None,
    workers: Workers = None,
    fresh: Annotated[bool, Option("--fresh", help="Run finished cells again.")] = False,
    engine: Engine = "processes",
    address: Address = None,
    json: Json = False,
) -> None:
    """Run every cell of a parameter grid on all cores.

    Finished cells are kept in the folder and are not run again.
    """
    from bilinq.commands import tables
    from bilinq.experiments import sweep as sweeps

    plan = sweeps.load(file)
    folder = out or Path("out") / file.stem
    try:
        with tables.Bar("slots") as bar:
            results = sweeps.run(plan, folder, workers, bar, fresh=fresh, engine=engine, address=address)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; finished cells are in {folder}, run the same command to continue", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print_json({"name": plan.name, "out": folder, "cells": [result.document() for result in results]})
    else:
        tables.show(_table(plan.name, results))


def _table(title: str, results: Sequence[Result]) -> Table:
    from rich.table import Table

    first = results[0].cell
    table = Table(title=title, caption="mean ± half the width of its 95 % interval")
    table.add_column("policy", overflow="fold", min_width=12)
    for name in first.varied:
        table.add_column(name.removeprefix("problem.").removeprefix("policy."), justify="right")
    for name in SHOWN:
        table.add_column(name.replace("_", " "), justify="right", no_wrap=True)
    for result in results:
        summary = result.summary()
        varied = [str(value) for value in result.cell.varied.values()]
        table.add_row(result.cell.policy, *varied, *(str(summary[name]) for name in SHOWN))
    return table
