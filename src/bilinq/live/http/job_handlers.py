"""Handlers and routes of those who submit jobs and of workers: jobs, servers, leases."""

from bilinq.live.http.routing import Request, Route
from bilinq.live.wire import messages as m
from bilinq.live.wire.queries import DeadQuery, JobsQuery, WaitQuery, given


async def register(request: Request[m.NewServer, None]) -> m.ServerInfo:
    """Register a server."""
    return await request.service.register(request.who, request.body)


async def list_servers(request: Request[None, None]) -> list[m.ServerInfo]:
    """Return the servers that the caller may see."""
    return await request.service.servers(request.who)


async def unregister(request: Request[None, None]) -> None:
    """Remove a server."""
    await request.service.unregister(request.who, request.path["id"])


async def lease(request: Request[None, WaitQuery]) -> m.Lease | None:
    """Return a lease, or None if there was no job in time."""
    wait = request.query.wait
    leasing = request.service.lease(request.who, [request.path["id"]], wait)
    leases = await (request.while_connected(leasing) if wait else leasing)
    return leases[0] if leases else None


async def finish(request: Request[m.Finish, None]) -> m.Finished:
    """End a lease."""
    end = request.body
    finished = m.WorkFinish(
        lease=request.path["lease"], fence=end.fence, reward=end.reward, done=end.done, result=end.result
    )
    return await request.service.finish_one(request.who, finished)


async def extend(request: Request[m.Extend, None]) -> m.Deadline:
    """Extend a lease."""
    return await request.service.extend(request.who, request.path["lease"], request.body)


async def fail(request: Request[m.Fail, None]) -> m.Finished:
    """End a lease as failed."""
    return await request.service.fail(request.who, request.path["lease"], request.body)


async def work(request: Request[m.Work, None]) -> m.Worked:
    """End leases and ask for others."""
    working = request.service.work(request.who, request.body)
    return await (request.while_connected(working) if request.body.wait and request.body.lease else working)


async def submit(request: Request[m.Submit, None]) -> m.Submitted:
    """Store jobs."""
    return await request.service.submit(request.who, request.body.jobs)


async def list_jobs(request: Request[None, JobsQuery]) -> m.JobPage:
    """Return jobs that match the query."""
    query = request.query
    return await request.service.jobs(
        request.who, given(query.state), given(query.job_class), given(query.after), query.limit, given(query.key)
    )


async def get_job(request: Request[None, None]) -> m.Job:
    """Return a job."""
    return await request.service.job(request.who, request.path["id"])


async def cancel_job(request: Request[None, None]) -> m.Job:
    """Cancel a job."""
    return await request.service.cancel(request.who, request.path["id"])


async def list_dead(request: Request[None, DeadQuery]) -> m.JobPage:
    """Return dead jobs."""
    return await request.service.dead(request.who, given(request.query.after), request.query.limit)


async def retry_dead(request: Request[None, None]) -> m.Retried:
    """Queue a dead job again."""
    return await request.service.retry(request.who, request.path["id"])


WORK_ROUTES = (
    Route("POST", "/v1/servers", register, "Register a server; the same name returns the same server", "work", ("work",),
          body=m.NewServer, response=m.ServerInfo, status=201, also=(404, 409)),
    Route("GET", "/v1/servers", list_servers, "List the servers of the key; with scope read or admin, all servers", "work",
          ("read", "work"), response=list[m.ServerInfo]),
    Route("DELETE", "/v1/servers/{id}", unregister, "Remove a server; its job goes back to the queue", "work", ("work",),
          also=(409,)),
    Route("POST", "/v1/servers/{id}/lease", lease, "Wait for the next job of a server", "work", ("work",),
          query=WaitQuery, response=m.Lease, may_be_empty=True, also=(409,)),
    Route("POST", "/v1/leases/{lease}/finish", finish, "End a lease with a reward", "work", ("work",),
          body=m.Finish, response=m.Finished, also=(409,)),
    Route("POST", "/v1/leases/{lease}/extend", extend, "Extend a lease", "work", ("work",),
          body=m.Extend, response=m.Deadline, also=(409,)),
    Route("POST", "/v1/leases/{lease}/fail", fail, "End a lease as failed; the job goes back to the queue", "work",
          ("work",), body=m.Fail, response=m.Finished, also=(409,)),
    Route("POST", "/v1/work", work, "Finish leases and wait for jobs, for up to 1,000 servers", "work", ("work",),
          body=m.Work, response=m.Worked, also=(404, 409)),
)  # fmt: skip

JOB_ROUTES = (
    Route("POST", "/v1/jobs", submit, "Submit up to 1,000 jobs, all or none", "jobs", ("submit",),
          body=m.Submit, response=m.Submitted, status=201, also=(404, 409)),
    Route("GET", "/v1/jobs", list_jobs, "List jobs, newest first", "jobs", ("submit", "read"),
          query=JobsQuery, response=m.JobPage),
    Route("GET", "/v1/jobs/{id}", get_job, "Return a job with its history", "jobs", ("submit", "read"), response=m.Job),
    Route("DELETE", "/v1/jobs/{id}", cancel_job, "Cancel a job that has not ended", "jobs", ("submit",),
          response=m.Job, also=(409,)),
    Route("GET", "/v1/dead", list_dead, "List jobs that failed too often, newest first", "jobs", ("read",),
          query=DeadQuery, response=m.JobPage),
    Route("POST", "/v1/dead/{id}/retry", retry_dead, "Queue a dead job again", "jobs", ("admin",),
          response=m.Retried, also=(409,)),
)  # fmt: skip
