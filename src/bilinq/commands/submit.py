"""`bilinq submit`: jobs for the live service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilinq.errors import BadInput

if TYPE_CHECKING:
    from msgspec import Raw

    from bilinq.client import Client
    from bilinq.live.wire.messages import Job, JobRef, NewJob

ROOM = 900_000
"""Bytes of payload in one request, somewhat below what the service takes."""
SLOW = 3.0
"""Seconds without an answer after which the user is told."""
NOT_DONE = 1
"""Exit code when a job that was waited for is not done."""


def submit(
    job_class: Annotated[str, typer.Argument(metavar="CLASS", help="Class of the jobs.")],
    payload: Annotated[
        str | None, typer.Option(help="JSON for the worker, or - to read it from standard input; null unless given.")
    ] = None,
    lines: Annotated[
        str | None, typer.Option(help="File with a JSON payload in each line, or - for standard input; a job for each.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many jobs with the same payload.")] = 1,
    units: Annotated[int, typer.Option(help="Services that each job needs.")] = 1,
    once: Annotated[
        str | None, typer.Option(help="Word under which these jobs are submitted once, however often this is run.")
    ] = None,
    wait: Annotated[
        float | None, typer.Option(help="Wait up to so many seconds for the jobs to end, and print what came of them.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Address of the service; BILINQ_URL unless given.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Key with scope submit; better in BILINQ_KEY, where other users do not see it.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to try while the service is busy or away.")] = 30.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")] = False,
) -> None:
    """Submit jobs and print their ids, one in each line.

    With --wait the exit code is 1 if a job is not done by then.
    """
    from bilinq.arrays import count as whole
    from bilinq.client import Client
    from bilinq.client.calls import new_key
    from bilinq.live.wire.messages import NewJob

    if lines is not None and (payload is not None or count != 1):
        raise BadInput("--lines must stand without --payload and --count")
    payloads = [_payload(payload)] * whole("count", count) if lines is None else _lines(lines)
    word = once or new_key()
    jobs = [NewJob(job_class, one, f"{word}-{k}", whole("units", units)) for k, one in enumerate(payloads)]
    with Client(url, key, timeout=timeout) as client:
        with _saying_if_slow(f"no answer from {client.link.url} yet; trying for {timeout:g} s"):
            refs = _send(client, jobs, word)
        if wait is None:
            _show(refs, [f"{ref.id}" for ref in refs], json)
            return
        found = _wait(client, refs, wait)
    _show(found, [_line(job) for job in found], json)
    if any(job.state != "done" for job in found):
        raise typer.Exit(NOT_DONE)


@contextmanager
def _saying_if_slow(text: str) -> Iterator[None]:
    """Tell the user why nothing happens, if it takes long."""
    import threading

    timer = threading.Timer(SLOW, typer.echo, (text,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _payload(text: str | None) -> Raw | None:
    if text is None:
        return None
    name = "standard input" if text == "-" else "payload"
    return _checked(name, _read("-") if text == "-" else text)


def _lines(source: str) -> list[Raw]:
    """Return the payloads in a file, without blank lines."""
    name = "standard input" if source == "-" else source
    numbered = enumerate(_read(source).splitlines(), 1)
    return [_checked(f"{name}, line {k}", line) for k, line in numbered if line.strip()]


def _read(source: str) -> str:
    import sys
    from pathlib import Path

    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{source}: cannot be read; {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{source}: is not UTF-8 text; {error.reason} at byte {error.start}") from None


def _checked(name: str, text: str) -> Raw:
    """Return a JSON text as it is."""
    import msgspec

    try:
        msgspec.json.decode(text)
    except ValueError as error:
        raise BadInput(f"{name} must be JSON: {error}") from None
    return msgspec.Raw(text.strip().encode())


def _send(client: Client, jobs: Sequence[NewJob], word: str) -> list[JobRef]:
    """Submit all jobs; if that fails half-way, say how to go on without submitting some of them twice."""
    refs: list[JobRef] = []
    try:
        for batch in _batches(jobs):
            refs += client.submit_all(batch)
    except Exception:
        if len(jobs) > 1 or refs:
            typer.echo(
                f"{len(refs)} of {len(jobs)} jobs are submitted; the same command with --once {word} submits the others",
                err=True,
            )
        raise
    return refs


def _batches(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """Yield the jobs in parts that the service takes."""
    from bilinq.live.wire.messages import BATCH

    batch: list[NewJob] = []
    room = ROOM
    for job in jobs:
        size = len(bytes(job.payload)) if job.payload is not None else 0
        if batch and (len(batch) == BATCH or size > room):
            yield batch
            batch, room = [], ROOM
        batch.append(job)
        room -= size + 200
    if batch:
        yield batch


def _wait(client: Client, refs: Sequence[JobRef], seconds: float) -> list[Job]:
    """Return the jobs when all have ended, or time is up."""
    import time

    end = time.monotonic() + seconds
    return [client.wait(ref.id, max(end - time.monotonic(), 0.0)) for ref in refs]


def _line(job: Job) -> str:
    """Return a job on a line: id, state and what came of it."""
    import msgspec

    reward = [] if job.reward is None else [f"{job.reward:g}"]
    result = [] if job.result is None else [msgspec.json.encode(job.result).decode()]
    return "\t".join([job.id, job.state, *reward, *result, *([job.error] if job.error else [])])


def _show(jobs: Sequence[Any], lines: Sequence[str], json: bool) -> None:
    import msgspec

    text = msgspec.json.format(msgspec.json.encode({"jobs": jobs}), indent=2).decode() if json else "\n".join(lines)
    if text:
        typer.echo(text)
