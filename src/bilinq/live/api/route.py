"""A line of the table of routes, from which both the dispatch and the OpenAPI document are made."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from bilinq.live.api.bodies import NoQuery
from bilinq.live.api.call import Call

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
