"""Routes of those who run the service: its state, classes, settings, keys and the audit."""

from bilinq.errors import Conflict
from bilinq.live.http.call import Call
from bilinq.live.http.endpoint import ANY
from bilinq.live.http.routing import Route
from bilinq.live.keys import SCOPES
from bilinq.live.wire.messages import (
    Audit,
    Classes,
    CreatedKey,
    JobClassInfo,
    KeyInfo,
    Keys,
    NewKey,
    Rotate,
    ServerClassInfo,
    SettingsInfo,
    SettingsUpdate,
    State,
)
from bilinq.live.wire.queries import AuditQuery, JobClassValues, Me, Named, ServerClassValues, convert


async def get_state(call: Call[None, None]) -> State:
    """Return everything at a glance."""
    return await call.service.state()


async def get_classes(call: Call[None, None]) -> Classes:
    """Return all classes."""
    return await call.service.classes()


async def put_job_class(call: Call[JobClassValues, None]) -> JobClassInfo:
    """Add or change a class of jobs."""
    new = call.body
    name = _class_name(call.path["name"], new.name)
    wanted = JobClassInfo(name, new.features, new.weight, new.holding_cost, new.backlog)
    await call.service.put_job_class(call.who, wanted)
    return wanted


async def put_server_class(call: Call[ServerClassValues, None]) -> ServerClassInfo:
    """Add or change a class of servers."""
    wanted = ServerClassInfo(_class_name(call.path["name"], call.body.name), call.body.features)
    await call.service.put_server_class(call.who, wanted)
    return wanted


async def get_settings(call: Call[None, None]) -> SettingsInfo:
    """Return the settings of the policy."""
    return await call.service.policy_settings()


async def update_settings(call: Call[SettingsUpdate, None]) -> SettingsInfo:
    """Change some settings of the policy."""
    return await call.service.update_settings(call.who, call.body)


async def create_key(call: Call[NewKey, None]) -> CreatedKey:
    """Make a key."""
    return await call.service.create_key(call.who, call.body)


async def list_keys(call: Call[None, None]) -> Keys:
    """Return what is known of all keys."""
    return await call.service.keys(call.who)


async def revoke_key(call: Call[None, None]) -> KeyInfo:
    """Make a key useless."""
    return await call.service.revoke_key(call.who, call.path["prefix"])


async def rotate_key(call: Call[Rotate, None]) -> CreatedKey:
    """Replace a key."""
    return await call.service.rotate_key(call.who, call.path["prefix"], call.body)


async def get_audit(call: Call[None, AuditQuery]) -> Audit:
    """Return admin actions."""
    return await call.service.audit(call.who, call.query.limit)


async def get_me(call: Call[None, None]) -> Me:
    """Return what the key in use is good for."""
    return Me(call.who.prefix, call.who.namespace, [scope for scope in SCOPES if scope in call.who.scopes])


def _class_name(path: str, body: str | None) -> str:
    """Return the name in the path, checked as a name and against the one in the body."""
    name: str = convert({"name": path}, Named).name
    if body is not None and body != name:
        raise Conflict(f"name must be that of the path, {name!r}; got {body!r}")
    return name


ROUTES = (
    Route("GET", "/v1/state", get_state, "Queues, servers, allocation, what was learnt, waits", "state", ("read",),
          answer=State),
    Route("GET", "/v1/classes", get_classes, "List classes", "state", ("read",), answer=Classes),
    Route("PUT", "/v1/job-classes/{name:path}", put_job_class, "Add or change a job class", "admin", ("admin",),
          body=JobClassValues, answer=JobClassInfo, also=(409,)),
    Route("PUT", "/v1/server-classes/{name:path}", put_server_class, "Add or change a server class", "admin", ("admin",),
          body=ServerClassValues, answer=ServerClassInfo, also=(409,)),
    Route("GET", "/v1/knobs", get_settings, "Show the settings of the policy", "state", ("read",), answer=SettingsInfo),
    Route("PATCH", "/v1/knobs", update_settings, "Change some settings of the policy", "admin", ("admin",),
          body=SettingsUpdate, answer=SettingsInfo, also=(404, 409)),
    Route("POST", "/v1/keys", create_key, "Make a key, which is shown only here", "admin", ("admin",),
          body=NewKey, answer=CreatedKey, status=201),
    Route("GET", "/v1/keys", list_keys, "List keys", "admin", ("admin",), answer=Keys),
    Route("DELETE", "/v1/keys/{prefix}", revoke_key, "Revoke a key", "admin", ("admin",), answer=KeyInfo, also=(409,)),
    Route("POST", "/v1/keys/{prefix}/rotate", rotate_key, "Make a key in the place of another, which soon expires", "admin",
          ("admin",), body=Rotate, answer=CreatedKey, status=201, also=(409,)),
    Route("GET", "/v1/audit", get_audit, "List admin actions, newest first", "admin", ("admin",),
          query=AuditQuery, answer=Audit),
    Route("GET", "/v1/me", get_me, "Show what the key in use is good for", "state", ANY, answer=Me),
)  # fmt: skip
