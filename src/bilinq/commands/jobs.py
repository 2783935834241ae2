"""`bilinq jobs`: list, show, cancel and retry jobs of the live service."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from bilinq.commands.shared import NOT_DONE, Json, Url, connect, print_structs, time_text
from bilinq.errors import BadInput, Refused

if TYPE_CHECKING:
    from bilinq.client import Client
    from bilinq.live.wire.messages import Changed, Job

LONGEST = 60  # characters of an error that the table shows
PAGE = 1000  # jobs in one request

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

State = Annotated[str | None, Option(help="queued, leased, done, dead, cancelled or expired.")]
Class = Annotated[str | None, Option("--class", metavar="CLASS", help="Class of the jobs.")]
Tag = Annotated[str | None, Option(help="A tag of the jobs.")]
Ids = Annotated[list[str] | None, Argument(metavar="[ID]...", help="Jobs, such as j12, instead of a filter.")]
Key = Annotated[str | None, Option(help="Key with scope read or submit. [default: BILINQ_KEY]")]


@app.callback()
def main() -> None:
    """List, show, cancel and retry jobs."""


@app.command("list")
def list_jobs(
    state: State = None,
    job_class: Class = None,
    tag: Tag = None,
    limit: Annotated[int, Option(min=1, help="Number of jobs to list at most.")] = 20,
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    from itertools import islice

    with connect(url, key) as client:
        found = list(
            islice(_all_jobs(client, min(limit + 1, PAGE), state=state, job_class=job_class, tag=tag), limit + 1)
        )
    if json:
        print_structs({"jobs": found[:limit]})
        return
    from bilinq.commands.tables import show_rows

    if not found:
        typer.echo("no jobs")
        return
    caption = f"the newest {limit}; use --limit for more" if len(found) > limit else ""
    columns = ("job", "class", "state", "attempts", "submitted", "wait", "reward", "tags", "error")
    show_rows(columns, map(_row, found[:limit]), caption=caption, left=len(columns))


@app.command()
def show(
    id: Annotated[str, Argument(help="A job, such as j12.")],
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Show a job with its history, payload and result."""
    with connect(url, key) as client:
        job = client.job(id)
    if json:
        print_structs(job)
        return
    for name, value in _facts(job):
        typer.echo(f"{name:<14}{value}")
    for event in job.history:
        where = "" if event.server is None else f" on {event.server}"
        typer.echo(f"  {time_text(event.at)}  {event.what}{where}{'' if event.detail is None else f': {event.detail}'}")


@app.command()
def cancel(
    ids: Ids = None,
    state: Annotated[str | None, Option(help="queued or leased. [default: both]")] = None,
    job_class: Class = None,
    tag: Tag = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask before jobs are cancelled by a filter.")] = False,
    url: Url = None,
    key: Annotated[str | None, Option(help="Key with scope submit. [default: BILINQ_KEY]")] = None,
    json: Json = False,
) -> None:
    """Cancel jobs that have not ended, by id or by a filter.

    The exit code is 1 if a job that was named could not be cancelled.
    """
    wanted = _filter(ids, state, job_class, tag)
    if wanted and not yes:
        typer.confirm(f"Cancel all jobs with {_words(wanted)} that have not ended?", abort=True, err=True)
    with connect(url, key) as client:
        if ids:
            _each(ids, lambda id: client.cancel(id), "cancelled", json)
        else:
            _show_count(_in_batches(client.cancel_jobs, wanted, "cancelled"), "cancelled", json)


@app.command()
def retry(
    ids: Ids = None,
    job_class: Class = None,
    tag: Tag = None,
    every: Annotated[bool, Option("--all", help="Retry all dead jobs.")] = False,
    url: Url = None,
    key: Annotated[str | None, Option(help="Key with scope admin. [default: BILINQ_KEY]")] = None,
    json: Json = False,
) -> None:
    """Queue dead jobs again, by id or by a filter.

    The exit code is 1 if a job that was named could not be retried.
    """
    wanted = _filter(ids, "dead" if every else None, job_class, tag, every="--all")
    with connect(url, key) as client:
        if ids:
            _each(ids, lambda id: client.retry(id), "queued again", json)
        else:
            _show_count(_in_batches(client.retry_jobs, wanted, "queued again"), "queued again", json)


def _filter(
    ids: Sequence[str] | None, state: str | None, job_class: str | None, tag: str | None, every: str = "--state"
) -> dict[str, Any]:
    """Return the options of a filter that are given; raise unless there are either ids or such options."""
    given = {"state": state, "job_class": job_class, "tag": tag}
    wanted = {name: value for name, value in given.items() if value is not None}
    if bool(ids) == bool(wanted):
        got = "both" if ids else "neither"
        raise BadInput(f"give either ids of jobs or some of {every}, --class and --tag; got {got}")
    return wanted


def _words(wanted: dict[str, Any]) -> str:
    return ", ".join(f"{name.removeprefix('job_')} {value}" for name, value in wanted.items())


def _in_batches(change: Callable[..., Changed], wanted: dict[str, Any], what: str) -> int:
    """Return how many jobs were changed, batch by batch; if that fails halfway, print how many were changed before."""
    total, after = 0, None
    try:
        while True:
            done = change(**wanted, after=after)
            total, after = total + done.changed, done.after
            if after is None:
                return total
    except BaseException:
        if total:
            typer.echo(f"{total} jobs were {what} before this error", err=True)
        raise


def _show_count(many: int, what: str, json: bool) -> None:
    if json:
        print_structs({"changed": many})
    else:
        typer.echo(f"{many} {'job' if many == 1 else 'jobs'} {what}")


def _each(ids: Sequence[str], change: Callable[[str], Any], what: str, json: bool) -> None:
    """Change jobs one by one; those that cannot be changed do not stop the others."""
    changed, problems = [], []
    for id in ids:
        try:
            change(id)
            changed.append(id)
        except Refused as error:
            problems.append(error)
    if json:
        print_structs({"changed": len(changed), "jobs": changed})
    else:
        for id in changed:
            typer.echo(f"{id} is {what}")
    for problem in problems:
        typer.echo(f"error: {problem}", err=True)
    if problems:
        raise typer.Exit(NOT_DONE)


def _all_jobs(client: Client, page: int, **wanted: Any) -> Iterator[Job]:
    """Yield jobs page by page."""
    after = None
    while True:
        found = client.jobs(**wanted, after=after, limit=page)
        yield from found.jobs
        after = found.after
        if after is None:
            return


def _row(job: Job) -> tuple[str, ...]:
    wait = "" if job.started is None else _seconds(job.started - job.submitted)
    reward = "" if job.reward is None else f"{job.reward:.3g}"
    error = (job.error or "").partition("\n")[0]
    short = error if len(error) <= LONGEST else f"{error[: LONGEST - 3]}..."
    tags = " ".join(job.tags)
    return job.id, job.job_class, job.state, str(job.attempts), time_text(job.submitted), wait, reward, tags, short


def _facts(job: Job) -> Iterator[tuple[str, str]]:
    """Yield what is known of a job, by name."""
    import msgspec

    times = ("submitted", "started", "ended", "deadline", "not_before")
    for name in msgspec.structs.asdict(job):
        value = getattr(job, name)
        if name == "history" or value is None or value == []:
            continue
        if name in times:
            text = time_text(value)
        elif name in ("payload", "result"):
            text = msgspec.json.encode(value).decode()
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield {"job_class": "class"}.get(name, name.replace("_", " ")), text


def _seconds(value: float) -> str:
    from bilinq.commands.screen import seconds

    return seconds(value)
