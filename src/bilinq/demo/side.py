"""One side of the demo: a service, and the processes that are its servers."""

from typing import Any, TypeVar

from bilinq.demo.children import Children
from bilinq.demo.tasks import Failed, Opened, Ready, Serve, Target, Work
from bilinq.errors import BadInput

T = TypeVar("T", Opened, Ready)
PROCESSES = 2
"""Processes that are the servers of a fleet; each has at least two classes of them."""
LEAVE, STOP = 2.0, 3.0
"""Seconds that servers may take to finish their jobs, and services to save what they have learnt."""


class Side:
    """A service with its servers; all processes start at once, since each takes a while to get ready.

    Attributes
    ----------
    service : Child
    workers : list of Child
    opened : Opened
        Keys and more, once it is open.
    url : str
        Where it answers, once it is ready.
    """

    opened: Opened
    url: str

    def __init__(self, children: Children, fleet: str) -> None:
        self._fleet = fleet
        self.service = children.start("service", 0.0)  # until it is ready it has nothing to save
        self.workers = [children.start("workers", LEAVE) for _ in range(PROCESSES)]

    def open(self, options: dict[str, Any]) -> Opened:
        """Tell the service its options, and return its keys as soon as its database is open."""
        self.service.tell(Serve(self._fleet, options))
        self.opened = self._heard(Opened)
        return self.opened

    def begin(self) -> Target:
        """Wait until the service answers, put the servers to work, and return where jobs are to go."""
        self.url, self.service.grace = self._heard(Ready).url, STOP
        names = list(self.opened.servers)
        for k, worker in enumerate(self.workers):
            worker.tell(Work(self._fleet, names[k::PROCESSES], self.url, self.opened.work))
        return Target(self.url, self.opened.submit)

    def _heard(self, kind: type[T]) -> T:
        """Return what the service says next, or raise if it failed."""
        said = self.service.hear(Opened | Ready | Failed)
        if isinstance(said, Failed):
            raise BadInput(said.error)
        if not isinstance(said, kind):
            raise ChildProcessError("a service of the demo did not start")
        return said
