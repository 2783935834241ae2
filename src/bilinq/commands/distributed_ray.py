"""`bilinq distributed --engine ray`: the nodes on Ray beside the nodes in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from bilinq.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from bilinq.distributed import System
    from bilinq.distributed.on_ray import RayRun
    from bilinq.distributed.on_ray.run import Effort


def compare(system: System, shards: str, address: str | None, tolerance: float, json: bool) -> None:
    """Let shards on Ray compute the allocation, and print what that took beside the same in one process."""
    from bilinq.distributed.on_ray import run as compare
    from bilinq.distributed.on_ray import solve

    run = solve(system, shards=_shards(shards), address=address, tolerance=tolerance)
    efforts = [compare.in_process(system, tolerance), compare.solved(system), compare.on_ray(run)]
    if json:
        _print_json(system, efforts, run)
    else:
        _print_table(system, efforts, run)


def _shards(text: str) -> int | list[int]:
    """Return one number, or those of job and of server shards."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"shards must be one whole number, or two with a comma; got {text!r}") from None
    return numbers[0] if len(numbers) == 1 else numbers


def _print_json(system: System, efforts: Sequence[Effort], run: RayRun) -> None:
    from bilinq.jsonable import to_json

    about = {"system": repr(system), "engines": efforts, "distance": run.distance}
    shards = {"round_trip": run.round_trip, "restarts": run.restarts, "absent": run.absent}
    typer.echo(to_json(about | shards, indent=2))


def _print_table(system: System, efforts: Sequence[Effort], run: RayRun) -> None:
    import numpy as np

    from bilinq.commands import tables

    tables.show(_table(system, efforts))
    typer.echo(
        f"median round trips of shards {1e3 * np.nanmin(run.round_trip):.1f} to {1e3 * np.nanmax(run.round_trip):.1f} ms; "
        f"sums within {run.distance:.1e} of the fixed point"
    )
    for name, number in run.restarts.items():
        typer.echo(f"{name} was replaced, times: {number}")
    for name in run.absent:
        typer.echo(f"{name} stayed away; what it had is not part of the answer")


def _table(system: System, efforts: Sequence[Effort]) -> Table:
    from rich.table import Table

    table = Table(
        title=str(system), caption="iterations: passes over all rows; gap: certified, 0.01 is as if all got 1 % less"
    )
    for name in ("engine", "seconds", "to start", "iterations", "messages", "kB", "gap at most"):
        table.add_column(name, justify="left" if name == "engine" else "right")
    for effort in efforts:
        table.add_row(
            effort.engine, f"{effort.seconds:.3f}", f"{effort.start_seconds:.1f}", f"{effort.iterations:.0f}",
            str(effort.messages), f"{effort.bytes / 1e3:.0f}", f"{effort.gap:.1e}",
        )  # fmt: skip
    return table
