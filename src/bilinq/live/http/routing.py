"""Routes: what one method of one path accepts and returns, and how a path finds its endpoint."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from bilinq.live.http.asgi import App, Receive, Scope, Send
from bilinq.live.http.call import Call
from bilinq.live.http.problems import NoSuchPath
from bilinq.live.wire.queries import NoQuery

JSON, EVENTS = "application/json", "text/event-stream"

Handler: TypeAlias = Callable[[Call[Any, Any]], Awaitable[Any]]


@dataclass(frozen=True)
class Route:
    """What one method of one path takes and gives.

    Attributes
    ----------
    method, path : str
        Names in braces are parameters; `{name:path}` may hold slashes.
    handler : callable
        Gets a `Call` and returns the answer's body, None for an empty answer, or a `Stream`.
    about : str
        One line for people.
    tag : str
        The group in the OpenAPI document.
    scopes : tuple of str or None
        One of these is needed; every key will do if there are none, and no key is needed if it is None.
    answer, status, content_type
        Type of the body and status where all went well; a type of None is an empty answer, 204. Of a stream
        of events it is the type of each; what is neither JSON nor a stream is a text.
    body, query : type
        What is decoded from the request; a body of None is not read.
    may_be_empty : bool
        Whether 204 without a body is possible besides.
    also : tuple of int
        Statuses of refusals besides those that follow from the above.
    local : bool
        Whether every process answers itself, also one that follows.
    """

    method: str
    path: str
    handler: Handler
    about: str
    tag: str
    scopes: tuple[str, ...] | None
    answer: Any = None
    status: int = 200
    body: Any = None
    query: Any = NoQuery
    may_be_empty: bool = False
    also: tuple[int, ...] = ()
    local: bool = False
    content_type: str = JSON

    @cached_property
    def parameters(self) -> list[str]:
        """Names in the path."""
        return re.findall(r"{(\w+)(?::\w+)?}", self.path)

    @cached_property
    def refusals(self) -> list[int]:
        """Every status of a refusal that the route may answer."""
        statuses = {422, 500, *self.also}
        if self.scopes is not None:
            statuses |= {401, 429, 503}
        if self.scopes:
            statuses |= {403}
        if self.body is not None:
            statuses |= {400, 413, 415}
        if self.parameters:
            statuses |= {404}
        return sorted(statuses)


_NAME = re.compile(r"{(\w+)(:path)?}")


class Paths:
    """Finds the application of a path by a look into a table, or, where paths hold names, by trying them in order.

    `{name}` stands for anything without a slash and `{name:path}` for anything at all; `scope["path_params"]` tells what,
    and `scope["route"]` the path with these.
    """

    def __init__(self, apps: Mapping[str, App]) -> None:
        self.fixed = {path: app for path, app in apps.items() if "{" not in path}
        self.named = [(pattern(path), app, path) for path, app in apps.items() if "{" in path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app, scope["path_params"], scope["route"] = self.find(scope["path"])
        await app(scope, receive, send)

    def find(self, path: str) -> tuple[App, dict[str, str], str]:
        """Return the application of a path, the names in it, and the path as it is written in the table."""
        if path in self.fixed:
            return self.fixed[path], {}, path
        for named, app, form in self.named:
            match = named.fullmatch(path)
            if match:
                return app, match.groupdict(), form
        raise NoSuchPath(f"nothing is served at {path[:200]!r}; /openapi.json describes what is")


def pattern(path: str) -> re.Pattern[str]:
    """Return an expression that matches whole paths of this form."""
    form = _NAME.sub(lambda name: f"(?P<{name[1]}>{'.*' if name[2] else '[^/]+'})", path)
    return re.compile(form, re.DOTALL)
