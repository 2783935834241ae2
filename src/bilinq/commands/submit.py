"""`bilinq submit` and `bilinq work`: jobs into the service, and servers for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from bilinq.commands.shared import NOT_DONE, Json, Url, print_structs, read_text, say_if_slow, source_name
from bilinq.errors import BadInput

if TYPE_CHECKING:
    from msgspec import Raw

    from bilinq.client import Client
    from bilinq.live.wire.messages import Job, JobRef, NewJob


ROOM = 900_000  # bytes of payload in one request, somewhat less than the service accepts by default


def submit(
    job_class: Annotated[str, Argument(metavar="CLASS", help="Class of the jobs.")],
    payload: Annotated[str | None, Option(help="JSON for the worker, or - for standard input. [default: null]")] = None,
    lines: Annotated[str | None, Option(help="File of JSON payloads, one job per line; - is standard input.")] = None,
    count: Annotated[int, Option(help="Number of jobs with this payload.")] = 1,
    units: Annotated[int, Option(help="Number of services that each job needs.")] = 1,
    features: Annotated[str | None, Option(help="Numbers that describe each job, such as 0.5,1.")] = None,
    servers: Annotated[
        str | None, Option(help="Server classes that may serve the jobs, such as gpu,cpu. [default: all]")
    ] = None,
    weight: Annotated[float | None, Option(help="Priority of the jobs. [default: that of their class]")] = None,
    deadline: Annotated[
        float | None, Option(help="Seconds from now after which a job that has not started expires.")
    ] = None,
    not_before: Annotated[float | None, Option(help="Seconds from now before which no job starts.")] = None,
    max_attempts: Annotated[
        int | None, Option(help="Attempts after which a job is dead. [default: that of the class]")
    ] = None,
    tag: Annotated[list[str] | None, Option(help="A tag of the jobs, to find them by; repeatable.")] = None,
    once: Annotated[str | None, Option(help="Name of this submission: the same name again adds no jobs.")] = None,
    wait: Annotated[float | None, Option(help="Seconds to wait for the jobs to end and print their results.")] = None,
    url: Url = None,
    key: Annotated[str | None, Option(help="Key with scope submit. [default: BILINQ_KEY, hidden from others]")] = None,
    timeout: Annotated[float, Option(help="Seconds to retry while the service is busy or unavailable.")] = 30.0,
    json: Json = False,
) -> None:
    """Submit jobs and print their ids, one per line.

    With --wait the exit code is 1 if a job is not done by then.
    """
    from msgspec import structs

    from bilinq.arrays import count as whole
    from bilinq.client import Client
    from bilinq.client.calls import new_key
    from bilinq.live.wire.messages import NewJob
    from bilinq.live.wire.queries import convert

    if lines is not None and (payload is not None or count != 1):
        raise BadInput("--lines excludes --payload and --count; use either --lines or these")
    payloads = [_payload(payload)] * whole("count", count) if lines is None else _lines(lines)
    word = once or new_key()
    given = {
        "class": job_class, "units": whole("units", units), "weight": weight, "deadline": deadline,
        "not_before": not_before, "max_attempts": max_attempts, "tags": tag or [],
        "features": features and features.split(","), "servers": servers and servers.split(","),
    }  # fmt: skip
    like: NewJob = convert(given, NewJob, strict=False)
    jobs = [structs.replace(like, payload=one, key=f"{word}-{k}") for k, one in enumerate(payloads)]
    with Client(url, key, timeout=timeout) as client:
        with say_if_slow(client):
            refs = _send(client, jobs, word)
        if wait is None:
            _show(refs, [ref.id for ref in refs], json)
            return
        end = time.monotonic() + wait
        found = [client.wait(ref.id, max(end - time.monotonic(), 0.0)) for ref in refs]
    _show(found, [_line(job) for job in found], json)
    if any(job.state != "done" for job in found):
        raise typer.Exit(NOT_DONE)


def _payload(text: str | None) -> Raw | None:
    if text is None:
        return None
    return _checked("standard input", read_text("-")) if text == "-" else _checked("payload", text)


def _lines(source: str) -> list[Raw]:
    numbered = enumerate(read_text(source).splitlines(), 1)
    return [_checked(f"{source_name(source)}, line {k}", line) for k, line in numbered if line.strip()]


def _checked(name: str, text: str) -> Raw:
    import msgspec

    try:
        msgspec.json.decode(text)
    except ValueError as error:
        raise BadInput(f"{name} must be JSON: {error}") from None
    return msgspec.Raw(text.strip().encode())


def _send(client: Client, jobs: Sequence[NewJob], word: str) -> list[JobRef]:
    """Submit all jobs; if that fails halfway, print how to continue without submitting any job twice."""
    refs: list[JobRef] = []
    try:
        for batch in _batches(jobs):
            refs += client.submit_all(batch)
    except Exception:
        if len(jobs) > 1 or refs:
            typer.echo(
                f"{len(refs)} of {len(jobs)} jobs were submitted; add --once {word} to submit the others", err=True
            )
        raise
    return refs


def _batches(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
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


def _line(job: Job) -> str:
    import msgspec

    reward = [] if job.reward is None else [f"{job.reward:g}"]
    result = [] if job.result is None else [msgspec.json.encode(job.result).decode()]
    return "\t".join([job.id, job.state, *reward, *result, *([job.error] if job.error else [])])


def _show(jobs: Sequence[Any], lines: Sequence[str], json: bool) -> None:
    if json:
        print_structs({"jobs": jobs})
    elif lines:
        typer.echo("\n".join(lines))


def work(
    server_class: Annotated[str, Argument(metavar="CLASS", help="Server class of this machine.")],
    command: Annotated[list[str], Argument(metavar="-- COMMAND", help="Program and arguments to run for each job.")],
    reward: Annotated[
        str,
        Option(
            help="duration: more reward for less time; exit: the highest reward for exit code 0, so that nothing is "
            'learnt about speed; last-line: the last line of output, a number or {"reward": x, "done": true, '
            '"result": any}.'
        ),
    ] = "duration",
    low: Annotated[float, Option(help="Lowest reward; the same as in the settings of the service.")] = 0.0,
    high: Annotated[float, Option(help="Highest reward; the same as in the settings of the service.")] = 1.0,
    half: Annotated[
        float,
        Option(help="For duration: seconds that earn the mean of --low and --high; the same for all workers."),
    ] = 10.0,
    limit: Annotated[float | None, Option(help="Seconds after which a command is stopped and fails.")] = None,
    servers: Annotated[int, Option(help="Number of commands that may run at the same time.")] = 1,
    name: Annotated[str | None, Option(help="Server name; after a crash the same name frees its jobs at once.")] = None,
    url: Url = None,
    key: Annotated[str | None, Option(help="Key with scope work. [default: BILINQ_KEY, hidden from others]")] = None,
    json: Annotated[bool, Option("--json", help="Write log lines as JSON.")] = False,
) -> None:
    """Run a command for each job that this server gets.

    The command reads the payload of the job as JSON from standard input. The environment contains BILINQ_JOB_ID,
    BILINQ_JOB_CLASS, BILINQ_UNITS_LEFT, BILINQ_ATTEMPTS and BILINQ_FENCE. Exit code 0 is success; any other code fails
    the attempt and returns the job to its queue. The service learns from the rewards which jobs to send to this class of
    servers. After SIGTERM or Ctrl-C running commands may finish; a second signal stops them and returns their jobs.
    """
    import sys

    from bilinq.client import Client, Worker
    from bilinq.client.command import Command, reward_rule
    from bilinq.live.logs import log_to

    rule = reward_rule(reward, low, high, half)
    log_to(sys.stderr, form="json" if json else "text")
    with Client(url, key) as client, Command(command, rule, limit) as function:
        Worker(client, server_class, function, name, servers=servers).run()
