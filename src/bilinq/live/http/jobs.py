"""Routes of those who submit jobs and look after them."""

from bilinq.live.http.call import Call
from bilinq.live.http.routing import Route
from bilinq.live.wire.messages import Job, JobPage, Retried, Submit, Submitted
from bilinq.live.wire.queries import DeadQuery, JobsQuery, given


async def submit(call: Call[Submit, None]) -> Submitted:
    """Store jobs."""
    return await call.service.submit(call.who, call.body.jobs)


async def list_jobs(call: Call[None, JobsQuery]) -> JobPage:
    """Return jobs that fit."""
    query = call.query
    return await call.service.jobs(
        call.who, given(query.state), given(query.job_class), given(query.after), query.limit, given(query.key)
    )


async def get_job(call: Call[None, None]) -> Job:
    """Return a job."""
    return await call.service.job(call.who, call.path["id"])


async def cancel_job(call: Call[None, None]) -> Job:
    """Cancel a job."""
    return await call.service.cancel(call.who, call.path["id"])


async def list_dead(call: Call[None, DeadQuery]) -> JobPage:
    """Return dead jobs."""
    return await call.service.dead(call.who, given(call.query.after), call.query.limit)


async def retry_dead(call: Call[None, None]) -> Retried:
    """Queue a dead job again."""
    return await call.service.retry(call.who, call.path["id"])


ROUTES = (
    Route("POST", "/v1/jobs", submit, "Submit up to 1,000 jobs, all or none", "jobs", ("submit",),
          body=Submit, answer=Submitted, status=201, also=(404, 409)),
    Route("GET", "/v1/jobs", list_jobs, "List jobs, newest first", "jobs", ("submit", "read"),
          query=JobsQuery, answer=JobPage),
    Route("GET", "/v1/jobs/{id}", get_job, "Look up a job and what happened to it", "jobs", ("submit", "read"),
          answer=Job),
    Route("DELETE", "/v1/jobs/{id}", cancel_job, "Cancel a job that has not ended", "jobs", ("submit",),
          answer=Job, also=(409,)),
    Route("GET", "/v1/dead", list_dead, "List jobs that failed too often, newest first", "jobs", ("read",),
          query=DeadQuery, answer=JobPage),
    Route("POST", "/v1/dead/{id}/retry", retry_dead, "Queue a dead job again", "jobs", ("admin",),
          answer=Retried, also=(409,)),
)  # fmt: skip
