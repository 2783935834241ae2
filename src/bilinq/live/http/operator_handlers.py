"""Routes of those who operate the service: many jobs at once, and the history of settings."""

from bilinq.live.http.routing import Request, route
from bilinq.live.service.bulk import JobFilter
from bilinq.live.wire import messages as m
from bilinq.live.wire.queries import AuditQuery, BadField, CancelQuery, RetryQuery, UndoQuery, given

SUBMIT, ADMIN, FLEET = ("submit",), ("admin",), ("fleet",)


async def cancel_jobs(request: Request[None, CancelQuery]) -> m.Changed:
    """Cancel the jobs that match the query."""
    return await request.service.cancel_jobs(request.who, _filter(request))


async def retry_jobs(request: Request[None, RetryQuery]) -> m.Changed:
    """Queue the dead jobs again that match the query."""
    return await request.service.retry_jobs(request.who, _filter(request))


def _filter(request: Request[None, CancelQuery] | Request[None, RetryQuery]) -> JobFilter:
    """Return the filter in the query; raise if there is none, or one in the body, which would match too much."""
    query = request.query
    if request.header(b"content-length") not in (None, b"0") or request.header(b"transfer-encoding") is not None:
        raise BadField("body", "must be empty; put state, class and tag into the query")
    wanted = JobFilter(given(query.state), given(query.job_class), given(query.tag), given(query.after), query.limit)
    if not wanted.words:
        raise BadField("state", "is needed, or class or tag; got none of them")
    return wanted


OPERATOR_ROUTES = (
    route("POST", "/v1/jobs/cancel", "cancel_jobs", cancel_jobs,
          "Cancel up to 1,000 jobs that match and have not ended, newest first", "jobs", SUBMIT,
          query=CancelQuery, response=m.Changed),
    route("POST", "/v1/jobs/retry", "retry_jobs", retry_jobs,
          "Queue up to 1,000 dead jobs again that match, newest first", "jobs", ADMIN,
          query=RetryQuery, response=m.Changed),
    route("GET", "/v1/settings/history", "get_settings_history", lambda r: r.service.settings_history(r.query.limit),
          "List changes of settings, newest first", "admin", FLEET, query=AuditQuery, response=m.SettingsChanges),
    route("POST", "/v1/settings/undo", "undo_settings",
          lambda r: r.service.undo_settings(r.who, given(r.query.change)),
          "Undo the newest change of settings that was not undone", "admin", FLEET,
          query=UndoQuery, response=m.SettingsInfo, also=(404, 409)),
)  # fmt: skip
