"""`bilinq distributed`: what gains do to nodes that compute an allocation with delays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from bilinq.commands.distributed_ray import compare
from bilinq.errors import BadInput

if TYPE_CHECKING:
    from rich.table import Table

    from bilinq.distributed import System
    from bilinq.distributed.survey import Trial
    from bilinq.distributed.system import Nodes


def distributed(
    job_classes: Annotated[int, typer.Option(help="Of the drawn system.")] = 4,
    server_classes: Annotated[int, typer.Option(help="Of the drawn system.")] = 3,
    penalty: Annotated[
        str, typer.Option(help="power:BETA, bounded:BETA,CEILING or barrier; what a server class charges for its load.")
    ] = "power:2",
    delay: Annotated[str, typer.Option(help="Least and largest delay one way, in rounds.")] = "1,5",
    fraction: Annotated[
        str, typer.Option(help="Gains to try, in parts of what is proved stable for rounds.")
    ] = "0.25,0.5,0.9,1,1.5",
    nodes: Annotated[str, typer.Option(help="Who computes: job or server.")] = "job",
    rule: Annotated[str, typer.Option(help="scaled, delayed, printed, or several with commas.")] = "scaled,printed",
    rounds: Annotated[int, typer.Option(help="The most rounds to run.")] = 4000,
    V: Annotated[float, typer.Option("--V", help="Weight of rewards against queues.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of the drawn system.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="PNG file for the stability map; takes about ten seconds.")] = None,
    engine: Annotated[
        str, typer.Option(help="in-process: a survey of gains; ray: actors that exchange messages, without set delays.")
    ] = "in-process",
    shards: Annotated[
        str, typer.Option(help="On Ray: actors in all, or those of job nodes and of server nodes.")
    ] = "8",
    tolerance: Annotated[float, typer.Option(help="On Ray: the gap to reach; 0.01 is as if all got 1 % less.")] = 0.01,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster, host:port or auto; else a Ray of its own.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs instead of a table for people.")
    ] = False,
) -> None:
    """Let nodes compute an allocation: margins, growth rates and rounds to 1 % of the optimum, for several gains."""
    from bilinq.arrays import count, one_of
    from bilinq.distributed import System
    from bilinq.distributed.survey import survey
    from bilinq.policies.registry import make_penalty, parse_numbers

    one_of("nodes", nodes, ("job", "server"))
    who = cast("Nodes", nodes)
    rules: Any = [one_of("rule", name, ("scaled", "delayed", "printed")) for name in rule.split(",")]
    bounds = parse_numbers("delay", delay, 2)
    options: dict[str, Any] = {"penalty": make_penalty(penalty), "delay": bounds, "V": V}
    sizes = job_classes, server_classes
    system = System.synthetic(*sizes, **options, seed=count("seed", seed, 0))
    if one_of("engine", engine, ("in-process", "ray")) == "ray":
        compare(system.with_delays(0.0, 0.0), shards, address, tolerance, json)
        return
    trials = survey(system, fractions=parse_numbers("fraction", fraction), nodes=who, rules=rules, rounds=rounds)
    facts = _facts(system, who)
    if plot is not None:
        _draw(plot, [System.synthetic(*sizes, **options, seed=seed + k) for k in range(6)], who, rounds)
    _show(system, trials, facts, json)


def _facts(system: System, nodes: Nodes) -> dict[str, float]:
    """Return what belongs to the system rather than to a gain."""
    from bilinq.distributed import boundary, shortfall

    facts = {"residual": float(system.equilibrium.residual), "shortfall": float(shortfall(system))}
    for rule in ("scaled", "printed"):
        full = system.safe_gain(1.0, "discrete")
        try:
            facts[f"boundary_{rule}"] = float(
                boundary(system, full, nodes=nodes, rule=cast(Any, rule), time="discrete")
            )
        except BadInput:
            facts[f"boundary_{rule}"] = float("nan")
    return facts


def _show(system: System, trials: Sequence[Trial], facts: dict[str, float], json: bool) -> None:
    from bilinq.commands import tables
    from bilinq.jsonable import to_json

    if json:
        typer.echo(to_json({"system": repr(system), "trials": list(trials)} | facts, indent=2))
        return
    tables.show(_table(system, trials))
    typer.echo(
        f"true boundary: scaled rule {facts['boundary_scaled']:.3f}, printed rule {facts['boundary_printed']:.3f} parts of "
        f"the condition\nfixed point: residual {facts['residual']:.1e}; scaled back to capacity it loses "
        f"{100 * facts['shortfall']:.2f} % against the exact program"
    )


def _table(system: System, trials: Sequence[Trial]) -> Table:
    from rich.table import Table

    table = Table(
        title=str(system), caption="rounds until the objective is within 1 % for good; growth below zero is stable"
    )
    for name in (
        "rule",
        "gain, part of the\ncondition for rounds",
        "theorem's\nmargin",
        "growth\na round",
        "rounds\nto 1 %",
    ):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for trial in trials:
        growth = "too large" if trial.growth is None else f"{trial.growth:+.4f}"
        settled = "no" if trial.rounds is None else str(trial.rounds)
        table.add_row(trial.rule, f"{trial.margin_rounds:.3g}", f"{trial.margin:.3f}", growth, settled)
    return table


def _draw(path: Path, systems: Sequence[System], nodes: Nodes, rounds: int) -> None:
    from bilinq.lab import stability, style

    try:
        path.touch()
    except OSError as error:
        raise BadInput(f"plot must be a file that can be written; {path}: {error.strerror}") from None
    path.write_bytes(style.png(stability.draw(systems, nodes=nodes, rounds=rounds)))
    typer.echo(f"figure: {path}", err=True)
