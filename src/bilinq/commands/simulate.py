"""`bilinq simulate`: runs of one policy, and what they measured."""

from __future__ import annotations

from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from bilinq.commands.shared import INTERRUPTED, Json, print_json, whole_numbers
from bilinq.errors import BadInput

if TYPE_CHECKING:
    from bilinq.simulation import Runs


def simulate(
    problem: Annotated[Path | None, Option(help="Problem file, JSON or TOML. [default: a random problem]")] = None,
    job_classes: Annotated[int | None, Option(help="Job classes of a random problem. [default: 10]")] = None,
    server_classes: Annotated[int | None, Option(help="Server classes of a random problem. [default: 2]")] = None,
    dimension: Annotated[
        str | None, Option(help="Length of feature vectors, or of job and of server features: 2 or 2,3.")
    ] = None,
    servers: Annotated[str | None, Option(help="Number of servers in total, or per class: 4 or 1,3.")] = None,
    traffic: Annotated[float | None, Option(help="Total traffic intensity. [default: 1]")] = None,
    service_rate: Annotated[float | None, Option(help="Probability that a slot completes a job.")] = None,
    noise: Annotated[float | None, Option(help="Standard deviation of rewards. [default: 0.1]")] = None,
    holding_cost: Annotated[
        str | None, Option(help="Cost of a waiting job for a slot, or one for each job class: 1 or 7,1,1.")
    ] = None,
    problem_seed: Annotated[int | None, Option(help="Seed of a random problem. [default: 0]")] = None,
    instances: Annotated[
        str,
        Option(help="fixed: one problem for all replications; random: replication k has its own problem, of seed + k."),
    ] = "fixed",
    arrivals: Annotated[str, Option(help="bernoulli, poisson or markov-modulated.")] = "bernoulli",
    recorded: Annotated[
        Path | None, Option(help="Arrivals from a CSV file (slot,job_class,units, from 0) instead of a law.")
    ] = None,
    service: Annotated[
        str, Option(help="geometric: a slot may complete a job; units: it removes one of the units fixed on arrival.")
    ] = "geometric",
    breakdowns: Annotated[
        str | None, Option(help="Chances that a server fails and that it is repaired in a slot: 0.01,0.1.")
    ] = None,
    policy: Annotated[
        str, Option(help="sabr, ugda-ol, known-rewards, max-weight, c-mu, greedy, random, first-come or static-split.")
    ] = "sabr",
    option: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="Option of the policy, such as V=58; repeatable.")
    ] = None,
    slots: Annotated[int, Option(help="Number of slots.")] = 500,
    replications: Annotated[int, Option(help="Number of independent runs.")] = 10,
    seed: Annotated[int, Option(help="Seed of the runs.")] = 1,
    json: Json = False,
) -> None:
    """Simulate a policy: regret, queues, costs and waits.

    Each measure is a mean with its 95 % interval.
    """
    from bilinq import simulation
    from bilinq.arrays import count
    from bilinq.commands import tables
    from bilinq.experiments.settings import make_setting
    from bilinq.policies.registry import make_policy, parse_numbers
    from bilinq.simulation.simulate import MOST_REPLICATIONS

    described = {
        "job_classes": job_classes, "server_classes": server_classes,
        "dimension": None if dimension is None else whole_numbers("dimension", dimension),
        "servers": None if servers is None else whole_numbers("servers", servers),
        "traffic": traffic, "service_rate": service_rate, "noise": noise, "seed": problem_seed,
        "holding_cost": None if holding_cost is None else _costs(holding_cost),
        "file": None if problem is None else str(problem), "recorded": None if recorded is None else str(recorded),
        "service": None if service == "geometric" else service,
        "breakdowns": None if breakdowns is None else parse_numbers("breakdowns", breakdowns, 2),
    }  # fmt: skip
    given = {key: value for key, value in described.items() if value is not None} | {"instances": instances}
    options = dict(map(_option, option or []))
    chosen = make_policy(policy, options)
    setting = make_setting(given, arrivals)
    problems = setting.problems(seed, range(count("replications", replications, most=MOST_REPLICATIONS)))
    with tables.Bar("slots") as bar:
        runs = simulation.simulate(
            problems, chosen, slots=slots, replications=replications, seed=seed, arrivals=setting.arrivals(),
            service=setting.service, capacity=setting.capacity(), progress=bar,
        )  # fmt: skip
    about = {"policy": policy, "options": options, "problem": given, "slots": runs.slots}
    _show(runs, about | {"replications": replications, "seed": seed}, json)
    if not runs.complete:
        typer.echo(f"interrupted after {runs.slots} of {slots} slots", err=True)
        raise typer.Exit(INTERRUPTED)


def _show(runs: Runs, about: dict[str, Any], json: bool) -> None:
    import numpy as np

    from bilinq.commands import tables

    if json:
        print_json(about | runs.summary() | {"seconds": runs.seconds, "complete": runs.complete, "run": runs.settings})
        return
    if np.isnan(runs.oracle).all():
        typer.echo(f"no regret: {runs.settings['oracle']}", err=True)
    title = f"{about['replications']} runs of {runs.slots} slots"
    tables.show(tables.summary_table(title, {about["policy"]: runs.summary()}))


def _costs(text: str) -> float | tuple[float, ...]:
    from bilinq.policies.registry import parse_numbers

    costs = parse_numbers("holding-cost", text)
    return costs[0] if len(costs) == 1 else tuple(costs)


def _option(text: str) -> tuple[str, Any]:
    """Return key and value of `key=value`; values are JSON where they can be, and words otherwise."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"a setting must read key=value; got {text!r}")
    try:
        return key.strip(), loads(value)
    except ValueError:
        return key.strip(), value.strip()
