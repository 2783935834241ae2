"""Routes of workers: servers, leases, and the batch call for agents of many servers."""

from bilinq.live.http.call import Call
from bilinq.live.http.routing import Route
from bilinq.live.wire.messages import (
    Deadline,
    Extend,
    Fail,
    Finish,
    Finished,
    Lease,
    NewServer,
    ServerInfo,
    Work,
    Worked,
    WorkFinish,
)
from bilinq.live.wire.queries import WaitQuery


async def register(call: Call[NewServer, None]) -> ServerInfo:
    """Register a server."""
    return await call.service.register(call.who, call.body)


async def list_servers(call: Call[None, None]) -> list[ServerInfo]:
    """Return servers."""
    return await call.service.servers(call.who)


async def unregister(call: Call[None, None]) -> None:
    """Forget a server."""
    await call.service.unregister(call.who, call.path["id"])


async def lease(call: Call[None, WaitQuery]) -> Lease | None:
    """Return a lease, or None if there was no job in time."""
    wait = call.query.wait
    asked = call.service.lease(call.who, [call.path["id"]], wait)
    leases = await (call.while_connected(asked) if wait else asked)
    return leases[0] if leases else None


async def finish(call: Call[Finish, None]) -> Finished:
    """End a lease."""
    end = call.body
    return await call.service.finish_one(
        call.who, WorkFinish(call.path["lease"], end.fence, end.reward, end.done, end.result)
    )


async def extend(call: Call[Extend, None]) -> Deadline:
    """Give a lease more time."""
    return await call.service.extend(call.who, call.path["lease"], call.body)


async def fail(call: Call[Fail, None]) -> Finished:
    """Give a lease back."""
    return await call.service.fail(call.who, call.path["lease"], call.body)


async def work(call: Call[Work, None]) -> Worked:
    """Finish leases and ask for more."""
    asked = call.service.work(call.who, call.body)
    return await (call.while_connected(asked) if call.body.wait and call.body.lease else asked)


ROUTES = (
    Route("POST", "/v1/servers", register, "Register a server; the same name gives the same server", "work", ("work",),
          body=NewServer, answer=ServerInfo, status=201, also=(404, 409)),
    Route("GET", "/v1/servers", list_servers, "List servers", "work", ("read", "work"), answer=list[ServerInfo]),
    Route("DELETE", "/v1/servers/{id}", unregister, "Forget a server; its lease goes back to the queue", "work", ("work",),
          also=(409,)),
    Route("POST", "/v1/servers/{id}/lease", lease, "Wait for the next job of a server", "work", ("work",),
          query=WaitQuery, answer=Lease, may_be_empty=True, also=(409,)),
    Route("POST", "/v1/leases/{lease}/finish", finish, "End a lease with a reward", "work", ("work",),
          body=Finish, answer=Finished, also=(409,)),
    Route("POST", "/v1/leases/{lease}/extend", extend, "Ask for more time", "work", ("work",),
          body=Extend, answer=Deadline, also=(409,)),
    Route("POST", "/v1/leases/{lease}/fail", fail, "Give a lease back", "work", ("work",),
          body=Fail, answer=Finished, also=(409,)),
    Route("POST", "/v1/work", work, "Finish leases and wait for jobs, for up to 1,000 servers", "work", ("work",),
          body=Work, answer=Worked, also=(404, 409)),
)  # fmt: skip
