"""Routes of those who submit jobs and of workers: jobs, servers, leases."""

from functools import partial
from typing import Literal

from bilinq.live.http.routing import Request, route
from bilinq.live.service.bulk import JobFilter
from bilinq.live.wire import messages as m
from bilinq.live.wire.queries import (
    BadField,
    CancelQuery,
    DeadQuery,
    DecisionsQuery,
    JobsQuery,
    NoQuery,
    RetryQuery,
    WaitQuery,
    given,
)

JSON_LINES = "application/x-ndjson"
SUBMIT, WORK, ADMIN, READ, SUBMIT_OR_READ = ("submit",), ("work",), ("admin",), ("read",), ("submit", "read")


async def lease(request: Request[None, WaitQuery]) -> m.Lease | None:
    """Return a lease, or None if there was no job in time."""
    wait = request.query.wait
    leasing = request.service.lease(request.who, [request.path["id"]], wait)
    leases = await (request.while_connected(leasing) if wait else leasing)
    return leases[0] if leases else None


async def finish(request: Request[m.Finish, NoQuery]) -> m.Finished:
    """End a lease."""
    end = request.body
    finished = m.WorkFinish(request.path["lease"], end.fence, end.reward, end.done, end.result)
    return await request.service.finish_one(request.who, finished)


async def work(request: Request[m.Work, NoQuery]) -> m.Worked:
    """End leases and ask for others."""
    working = request.service.work(request.who, request.body)
    return await (request.while_connected(working) if request.body.wait and request.body.lease else working)


async def list_jobs(request: Request[None, JobsQuery]) -> m.JobPage:
    """Return jobs that match the query."""
    query = request.query
    return await request.service.jobs(
        request.who,
        given(query.state),
        given(query.job_class),
        given(query.after),
        query.limit,
        given(query.key),
        given(query.tag),
    )


async def hold(request: Request[None, NoQuery], held: Literal["draining", "quarantined"] | None) -> m.ServerInfo:
    """Hold a server or release it."""
    return await request.service.hold(request.who, request.path["id"], held)


HOLDS: tuple[tuple[str, Literal["draining", "quarantined"] | None, str], ...] = (
    ("drain", "draining", "Let a server finish its job and give it no other"),
    ("quarantine", "quarantined", "Give a server that is suspect no job"),
    ("release", None, "Give a server jobs again that was held or paused"),
)


async def cancel_jobs(request: Request[None, CancelQuery]) -> m.Changed:
    """Cancel the jobs that match the query."""
    return await request.service.cancel_jobs(request.who, _filter_of(request))


async def retry_jobs(request: Request[None, RetryQuery]) -> m.Changed:
    """Queue the dead jobs again that match the query."""
    return await request.service.retry_jobs(request.who, _filter_of(request))


def _filter_of(request: Request[None, CancelQuery] | Request[None, RetryQuery]) -> JobFilter:
    """Return the filter in the query; raise if there is none, or one in the body, which would match too much."""
    query = request.query
    if request.header(b"content-length") not in (None, b"0") or request.header(b"transfer-encoding") is not None:
        raise BadField("body", "must be empty; put state, class and tag into the query")
    wanted = JobFilter(given(query.state), given(query.job_class), given(query.tag), given(query.after), query.limit)
    if not wanted.words:
        raise BadField("state", "is needed, or class or tag; got none of them")
    return wanted


WORK_ROUTES = (
    route("POST", "/v1/servers", "register", lambda r: r.service.register(r.who, r.body),
          "Register a server; the same name returns the same server", "work", WORK,
          body=m.NewServer, response=m.ServerInfo, status=201, also=(404, 409)),
    route("GET", "/v1/servers", "list_servers", lambda r: r.service.servers(r.who),
          "List the servers of the key; with scope read, all of its namespaces", "work", ("read", "work"),
          response=list[m.ServerInfo]),
    *(route("POST", f"/v1/servers/{{id}}/{name}", f"{name}_server", partial(hold, held=held), about, "admin", ADMIN,
            response=m.ServerInfo) for name, held, about in HOLDS),
    route("DELETE", "/v1/servers/{id}", "unregister", lambda r: r.service.unregister(r.who, r.path["id"]),
          "Remove a server; its job goes back to the queue", "work", WORK, also=(409,)),
    route("POST", "/v1/servers/{id}/lease", "lease", lease, "Wait for the next job of a server", "work", WORK,
          query=WaitQuery, response=m.Lease, may_be_empty=True, also=(409,)),
    route("POST", "/v1/leases/{lease}/finish", "finish", finish, "End a lease with a reward", "work", WORK,
          body=m.Finish, response=m.Finished, also=(409,)),
    route("POST", "/v1/leases/{lease}/extend", "extend", lambda r: r.service.extend(r.who, r.path["lease"], r.body),
          "Extend a lease", "work", WORK, body=m.Extend, response=m.Deadline, also=(409,)),
    route("POST", "/v1/leases/{lease}/fail", "fail", lambda r: r.service.fail(r.who, r.path["lease"], r.body),
          "End a lease as failed; the job goes back to the queue", "work", WORK,
          body=m.Fail, response=m.Finished, also=(409,)),
    route("POST", "/v1/work", "work", work, "Finish leases and wait for jobs, for up to 1,000 servers", "work", WORK,
          body=m.Work, response=m.Worked, also=(404, 409)),
)  # fmt: skip

JOB_ROUTES = (
    route("POST", "/v1/jobs", "submit", lambda r: r.service.submit(r.who, r.body.jobs),
          "Submit up to 1,000 jobs, all or none", "jobs", SUBMIT,
          body=m.Submit, response=m.Submitted, status=201, also=(404, 409)),
    route("GET", "/v1/jobs", "list_jobs", list_jobs, "List jobs, newest first", "jobs", SUBMIT_OR_READ,
          query=JobsQuery, response=m.JobPage),
    route("GET", "/v1/jobs/{id}", "get_job", lambda r: r.service.job(r.who, r.path["id"]),
          "Return a job with its history", "jobs", SUBMIT_OR_READ, response=m.Job),
    route("DELETE", "/v1/jobs/{id}", "cancel_job", lambda r: r.service.cancel(r.who, r.path["id"]),
          "Cancel a job that has not ended", "jobs", SUBMIT, response=m.Job, also=(409,)),
    route("GET", "/v1/jobs/{id}/decision", "get_decision", lambda r: r.service.decision(r.who, r.path["id"]),
          "Explain why a job was given to its server", "jobs", SUBMIT_OR_READ, response=m.DecisionInfo),
    route("GET", "/v1/decisions", "export_decisions",
          lambda r: r.service.decisions(r.who, given(r.query.after), r.query.limit),
          "Export rewarded decisions as JSON lines, oldest first", "jobs", READ,
          query=DecisionsQuery, response=str, content_type=JSON_LINES),
    route("POST", "/v1/jobs/{id}/reward", "reward_job", lambda r: r.service.reward(r.who, r.path["id"], r.body),
          "Reward a job that was finished, or correct its reward", "jobs", ("submit", "work"),
          body=m.NewReward, response=m.Rewarded, also=(409,)),
    route("GET", "/v1/dead", "list_dead", lambda r: r.service.dead(r.who, given(r.query.after), r.query.limit),
          "List jobs that failed too often, newest first", "jobs", READ, query=DeadQuery, response=m.JobPage),
    route("POST", "/v1/dead/{id}/retry", "retry_dead", lambda r: r.service.retry(r.who, r.path["id"]),
          "Queue a dead job again", "jobs", ADMIN, response=m.Retried, also=(409,)),
    route("POST", "/v1/jobs/cancel", "cancel_jobs", cancel_jobs,
          "Cancel up to 1,000 jobs that match and have not ended, newest first", "jobs", SUBMIT,
          query=CancelQuery, response=m.Changed),
    route("POST", "/v1/jobs/retry", "retry_jobs", retry_jobs,
          "Queue up to 1,000 dead jobs again that match, newest first", "jobs", ADMIN,
          query=RetryQuery, response=m.Changed),
)  # fmt: skip
