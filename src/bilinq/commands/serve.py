"""`bilinq serve`: the live service."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilinq.errors import BadInput

if TYPE_CHECKING:
    from bilinq.live.settings import ServiceSettings


def serve(
    config: Annotated[Path | None, typer.Option(help="TOML file with settings and classes.")] = None,
    database: Annotated[
        str | None, typer.Option(help="sqlite:///FILE or postgresql://...; sqlite:///bilinq.db unless given.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 unless given.")] = None,
    port: Annotated[int | None, typer.Option(help="8000 unless given; 0 is any free one.")] = None,
    advertise: Annotated[
        str | None, typer.Option(help="Address under which other processes on the same database reach this one.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="sabr (unless given), or first-come: first come, first served, to compare with.")
    ] = None,
    slot: Annotated[float | None, typer.Option(help="Seconds of a slot; 0.05 unless given.")] = None,
    lease: Annotated[float | None, typer.Option(help="Seconds until a lease expires; 30 unless given.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Failures until a job is dead; 5 unless given.")] = None,
    target_wait: Annotated[float | None, typer.Option(help="Seconds of waiting to aim at; 2 unless given.")] = None,
    V: Annotated[float | None, typer.Option("--V", help="Weight of rewards against queues, instead.")] = None,
    reward_low: Annotated[float | None, typer.Option(help="Least reward; 0 unless given.")] = None,
    reward_high: Annotated[float | None, typer.Option(help="Largest reward; 1 unless given.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Cost of using a server; 1.2 unless given.")] = None,
    exploration: Annotated[str | None, typer.Option(help="thompson (unless given), ucb or none.")] = None,
    work_conserving: Annotated[
        bool | None, typer.Option("--work-conserving/--may-idle", help="Whether no server idles while a job waits.")
    ] = None,
    backlog: Annotated[int | None, typer.Option(help="Most waiting jobs of a class; 100,000 unless given.")] = None,
    max_body: Annotated[int | None, typer.Option(help="Most bytes of a request; 1 MiB unless given.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second of each key; 2,000 unless given, 0 is no limit.")
    ] = None,
    retention: Annotated[
        float | None, typer.Option(help="Seconds that ended jobs are kept; for ever unless given.")
    ] = None,
    server_retention: Annotated[
        float | None, typer.Option(help="Seconds that servers are kept which went away; a week unless given.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the scheduler.")] = None,
    checkpoint_every: Annotated[
        float | None, typer.Option(help="Seconds between checkpoints of what was learnt; 60 unless given.")
    ] = None,
    log_requests: Annotated[
        bool | None, typer.Option("--log-requests/--no-log-requests", help="A log line for each request.")
    ] = None,
    sample: Annotated[
        float | None, typer.Option(help="Seconds between two moments for those who watch; 1 unless given.")
    ] = None,
    history: Annotated[float | None, typer.Option(help="Seconds that moments are kept; 3600 unless given.")] = None,
    log_format: Annotated[
        str | None, typer.Option(help="text (unless given), or json: an object on each line.")
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="key (unless given): /metrics needs one; or open.")] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="With a simulated fleet, to watch; for this computer only.")
    ] = False,
    fleet: Annotated[
        str | None, typer.Option(help="Of the demo: gpus (unless given), paper, or trace for Google's.")
    ] = None,
    baseline: Annotated[
        bool | None, typer.Option("--baseline/--no-baseline", help="Demo: run first come, first served, as a baseline.")
    ] = None,
    rival: Annotated[bool | None, typer.Option("--rival/--no-rival", hidden=True)] = None,
    baseline_url: Annotated[
        str | None, typer.Option(help="Address of another service, shown as a baseline beside this one.")
    ] = None,
    baseline_key: Annotated[str | None, typer.Option(help="A key of the baseline with scope read.")] = None,
    rival_url: Annotated[str | None, typer.Option(hidden=True)] = None,
    rival_key: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the live scheduler: jobs and workers come over HTTP, see /openapi.json.

    Every option may also come from the environment, as BILINQ_ and its name in capitals, or from the file; options win
    over the environment, and that over the file.
    """
    given = _with_new_names(dict(locals()))
    demo, fleet, baseline = (given.pop(name) for name in ("demo", "fleet", "baseline"))
    if demo:
        from bilinq.demo.demo import run_demo

        run_demo(fleet or "gpus", given, typer.echo, baseline=bool(baseline))
        return
    if fleet is not None or baseline is not None:
        raise BadInput("--fleet and --baseline are options of --demo; add --demo")
    from bilinq.live.settings import load

    _run(load(given.pop("config"), given))


def _with_new_names(given: dict[str, Any]) -> dict[str, Any]:
    """Return options with values of renamed ones under their new names."""
    for name in ("rival", "rival_url", "rival_key"):
        value, new = given.pop(name), name.replace("rival", "baseline")
        if value is not None:
            old, now = (f"--{text.replace('_', '-')}" for text in (name, new))
            warnings.warn(f"{old} is deprecated and will be removed in the next version; use {now}", stacklevel=2)
            given[new] = value if given[new] is None else given[new]
    return given


def _run(settings: ServiceSettings) -> None:
    import uvloop

    from bilinq.live import tracing
    from bilinq.live.logs import log_to
    from bilinq.live.run import run

    log_to(form=settings.log_format)
    with tracing.start():
        uvloop.run(run(settings, lambda address: typer.echo(f"bilinq serves {address}")))
