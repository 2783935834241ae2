"""A request that waits for a slot of a back end, or has one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from .kind import Kind


@dataclass(eq=False, slots=True)
class Ticket:
    """Who asks what, and where it may go.

    Attributes
    ----------
    tenant : str
    kind : Kind
    allowed : frozenset of str, optional
        Back ends that may serve it; any unless given.
    again : bool
        Whether it has waited before, so that it comes first now.
    backend : str, optional
        Where it was sent.
    begin : future
        Done when it has a slot there.
    """

    tenant: str
    kind: Kind
    allowed: frozenset[str] | None = None
    again: bool = False
    backend: str | None = None
    begin: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def job_class(self) -> str:
        """The scheduler's class: what one tenant asks of one kind."""
        return job_class(self.tenant, self.kind)


def job_class(tenant: str, kind: Kind) -> str:
    """Return the name of the scheduler's class of a tenant's requests of one kind."""
    return f"{tenant}: {kind}"
