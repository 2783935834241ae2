"""`bilinq distributed`: what gains do to nodes that compute an allocation with delays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer import Option

from bilinq.commands.shared import Address, Json, print_json, whole_numbers
from bilinq.errors import BadInput

if TYPE_CHECKING:
    from bilinq.distributed import System
    from bilinq.distributed.on_ray import RayRun
    from bilinq.distributed.on_ray.run import Effort
    from bilinq.distributed.stability import Trial
    from bilinq.distributed.system import Nodes


def distributed(
    job_classes: Annotated[int, Option(help="Number of job classes of the random system.")] = 4,
    server_classes: Annotated[int, Option(help="Number of server classes of the random system.")] = 3,
    penalty: Annotated[
        str, Option(help="What a server class charges for its load: power:BETA, bounded:BETA,CEILING or barrier.")
    ] = "power:2",
    delay: Annotated[str, Option(help="Smallest and largest one-way delay, in rounds.")] = "1,5",
    fraction: Annotated[
        str, Option(help="Gains to try, as fractions of the gain that is proved stable for rounds.")
    ] = "0.25,0.5,0.9,1,1.5",
    nodes: Annotated[str, Option(help="Nodes that compute the rates: job or server.")] = "job",
    rule: Annotated[str, Option(help="scaled, delayed or printed, or several separated by commas.")] = "scaled,printed",
    rounds: Annotated[int, Option(help="Maximum number of rounds.")] = 4000,
    V: Annotated[float, Option("--V", help="Weight of rewards against queues.")] = 10.0,
    seed: Annotated[int, Option(help="Seed of the random system.")] = 0,
    plot: Annotated[Path | None, Option(help="PNG file for the stability map; takes about ten seconds.")] = None,
    engine: Annotated[
        str, Option(help="in-process: a survey of gains; ray: actors that exchange messages, without set delays.")
    ] = "in-process",
    shards: Annotated[
        str, Option(help="With ray: number of actors in total, or for job nodes and for server nodes: 8 or 6,2.")
    ] = "8",
    tolerance: Annotated[float, Option(help="With ray: the gap to reach; 0.01 equals 1 % less for all.")] = 0.01,
    address: Address = None,
    json: Json = False,
) -> None:
    """Survey gains for nodes that compute an allocation.

    For each gain it prints the margin, the growth rate and the number of rounds to 1 % of the optimum.
    """
    from bilinq.arrays import count, one_of
    from bilinq.distributed import System
    from bilinq.distributed.stability import survey
    from bilinq.policies.registry import make_penalty, parse_numbers

    one_of("nodes", nodes, ("job", "server"))
    who = cast("Nodes", nodes)
    rules: Any = [one_of("rule", name, ("scaled", "delayed", "printed")) for name in rule.split(",")]
    bounds = parse_numbers("delay", delay, 2)
    options: dict[str, Any] = {"penalty": make_penalty(penalty), "delay": bounds, "V": V}
    sizes = job_classes, server_classes
    system = System.synthetic(*sizes, **options, seed=count("seed", seed, 0))
    if one_of("engine", engine, ("in-process", "ray")) == "ray":
        _compare_on_ray(system.with_delays(0.0, 0.0), shards, address, tolerance, json)
        return
    trials = survey(system, fractions=parse_numbers("fraction", fraction), nodes=who, rules=rules, rounds=rounds)
    facts = _facts(system, who)
    if plot is not None:
        _draw(plot, [System.synthetic(*sizes, **options, seed=seed + k) for k in range(6)], who, rounds)
    _show(system, trials, facts, json)


def _facts(system: System, nodes: Nodes) -> dict[str, float]:
    from bilinq.distributed import boundary, shortfall

    facts = {"residual": float(system.equilibrium.residual), "shortfall": float(shortfall(system))}
    for rule in ("scaled", "printed"):
        full = system.safe_gain(1.0, "discrete")
        try:
            limit = boundary(system, full, nodes=nodes, rule=cast(Any, rule), time="discrete")
            facts[f"boundary_{rule}"] = float(limit)
        except BadInput:
            facts[f"boundary_{rule}"] = float("nan")
    return facts


def _row(trial: Trial) -> tuple[str, ...]:
    growth = "too large" if trial.growth is None else f"{trial.growth:+.4f}"
    settled = "no" if trial.rounds is None else str(trial.rounds)
    return trial.rule, f"{trial.margin_rounds:.3g}", f"{trial.margin:.3f}", growth, settled


def _show(system: System, trials: Sequence[Trial], facts: dict[str, float], json: bool) -> None:
    from bilinq.commands import tables

    if json:
        print_json({"system": repr(system), "trials": list(trials)} | facts)
        return
    columns = (
        "rule",
        "gain, part of the\ncondition for rounds",
        "theorem's\nmargin",
        "growth\na round",
        "rounds\nto 1 %",
    )
    caption = "rounds until the objective is within 1 % for good; growth below zero is stable"
    tables.show_rows(columns, map(_row, trials), str(system), caption=caption)
    typer.echo(
        f"true boundary: scaled rule {facts['boundary_scaled']:.3f}, printed rule {facts['boundary_printed']:.3f} parts of "
        f"the condition\nfixed point: residual {facts['residual']:.1e}; scaled back to capacity it loses "
        f"{100 * facts['shortfall']:.2f} % against the exact program"
    )


def _draw(path: Path, systems: Sequence[System], nodes: Nodes, rounds: int) -> None:
    from bilinq import style
    from bilinq.lab import stability

    try:
        path.touch()
    except OSError as error:
        raise BadInput(f"plot must be a file that can be written; {path}: {error.strerror}") from None
    path.write_bytes(style.png(stability.draw(systems, nodes=nodes, rounds=rounds)))
    typer.echo(f"figure: {path}", err=True)


def _compare_on_ray(system: System, shards: str, address: str | None, tolerance: float, json: bool) -> None:
    """Compute the allocation on Ray and in one process, and print what each took."""
    from bilinq.distributed import on_ray
    from bilinq.distributed.on_ray import run as engines

    numbers = whole_numbers("shards", shards, "one whole number, or two separated by a comma")
    run = on_ray.solve(system, shards=numbers, address=address, tolerance=tolerance)
    efforts = [engines.in_process(system, tolerance), engines.solved(system), engines.on_ray(run)]
    if not json:
        _show_efforts(system, efforts, run)
        return
    about = {"system": repr(system), "engines": efforts, "distance": run.distance}
    print_json(about | {"round_trip": run.round_trip, "restarts": run.restarts, "absent": run.absent})


def _show_efforts(system: System, efforts: Sequence[Effort], run: RayRun) -> None:
    import numpy as np

    from bilinq.commands import tables

    columns = ("engine", "seconds", "to start", "iterations", "messages", "kB", "gap at most")
    caption = "iterations: passes over all rows; gap: certified, 0.01 is the same as 1 % less for all"
    rows = (
        (one.engine, f"{one.seconds:.3f}", f"{one.start_seconds:.1f}", f"{one.iterations:.0f}", str(one.messages),
         f"{one.bytes / 1e3:.0f}", f"{one.gap:.1e}") for one in efforts
    )  # fmt: skip
    tables.show_rows(columns, rows, str(system), caption=caption)
    typer.echo(
        f"median round trips of shards {1e3 * np.nanmin(run.round_trip):.1f} to {1e3 * np.nanmax(run.round_trip):.1f} ms; "
        f"sums within {run.distance:.1e} of the fixed point"
    )
    for name, number in run.restarts.items():
        typer.echo(f"{name} was replaced {number} times")
    for name in run.absent:
        typer.echo(f"{name} did not come back; its part is missing from the result")
