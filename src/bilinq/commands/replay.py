"""`bilinq replay`: one router on a workload, and what it measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from bilinq.commands.shared import Json, print_json
from bilinq.errors import BadInput

if TYPE_CHECKING:
    from bilinq.routing import Replay, Workload

LABELS = {
    "jobs": "jobs", "complete": "  complete", "expired": "  expired", "reward": "reward per job",
    "total reward": "reward, total", "wait": "wait", "wait_p50": "  median", "wait_p95": "  95 %", "wait_p99": "  99 %",
    "sojourn": "time in system", "sojourn_p50": "  median", "sojourn_p95": "  95 %", "sojourn_p99": "  99 %",
    "growth": "growth of the queue per time", "growth error": "  standard error",
    "seconds per decision": "seconds per decision",
}  # fmt: skip


def replay(
    file: Annotated[Path, Argument(help="A saved workload (.npz), or a table (.csv, .parquet) with --servers.")],
    router: Annotated[str, Option(help="Name of the router, such as least-busy, matching or litellm.")] = "scheduler",
    seed: Annotated[int, Option(help="Seed of the run.")] = 1,
    servers: Annotated[str | None, Option(help="Servers of a table's classes: a100=4,t4=8.")] = None,
    arrival: Annotated[str, Option(help="Column of a table with times of arrival.")] = "arrival",
    load: Annotated[float | None, Option(help="Stretch times of arrival to this load.")] = None,
    out: Annotated[Path | None, Option(help="Write the record to this .npz file.")] = None,
    json: Json = False,
) -> None:
    """Replay a workload with one router: rewards and waits."""
    from bilinq import routing
    from bilinq.commands import tables
    from bilinq.routing.routers import router_named

    chosen = router_named(router)
    workload = read_workload(file, servers, arrival)
    if load is not None:
        workload = workload.at_load(load)
    with tables.Bar("jobs") as bar:
        run = routing.replay(workload, chosen, seed, bar)
    if out is not None:
        run.save(out)
    if json:
        print_json({"file": str(file), "router": run.router, "seed": seed, **run.summary()})
    else:
        _show(run, workload)


def read_workload(file: Path, servers: str | None, arrival: str) -> Workload:
    """Return the workload of a file: a saved one, or a table with its servers as text."""
    from bilinq.routing import Workload

    if file.suffix.lower() == ".npz":
        return Workload.load(file)
    if servers is None:
        raise BadInput("servers must be given for a table, such as a100=4,t4=8; got none")
    return Workload.from_table(file, servers=fleet(servers), arrival=arrival)


def fleet(servers: str) -> dict[str, int]:
    """Return servers by class from text such as a100=4,t4=8."""
    return dict(map(_fleet_part, servers.split(",")))


def _fleet_part(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name.strip() or not number.strip().isdecimal():
        raise BadInput(f"servers must read name=number, separated by commas; got {text!r}")
    return name.strip(), int(number)


def _show(run: Replay, workload: Workload) -> None:
    from bilinq.commands import tables

    found: dict[str, Any] = run.summary()
    rows = [(label, f"{found[name]:.4g}") for name, label in LABELS.items()]
    rows += [(f"utilisation, {name}", f"{share:.4g}") for name, share in found["utilisation"].items()]
    tables.show_rows(("", run.router), rows, f"{found['jobs']} jobs at load {workload.load_factor:.3g}")
