"""What a worker has to do next."""

from dataclasses import dataclass, field

from bilinq.live.messages import WorkFinish


@dataclass(frozen=True)
class Plan:
    """What a worker is: its servers' class and names, seconds to wait for jobs, and to get results across when it leaves."""

    server_class: str
    names: tuple[str, ...]
    wait: float
    leave: float


@dataclass
class Batch:
    """Names to register, servers that are idle, and ends of leases to send."""

    absent: list[str] = field(default_factory=list)
    idle: set[str] = field(default_factory=set)
    ends: list[WorkFinish] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.absent or self.idle or self.ends)

    def take(self) -> "Batch":
        """Return everything, and keep nothing."""
        taken = Batch(self.absent, self.idle, self.ends)
        self.absent, self.idle, self.ends = [], set(), []
        return taken

    def take_ends(self) -> "Batch":
        """Return the ends of leases, and keep the rest."""
        taken = Batch(ends=self.ends)
        self.ends = []
        return taken

    def put_back(self, other: "Batch") -> None:
        """Take over what `other` has left."""
        self.absent += other.absent
        self.idle |= other.idle
        self.ends += other.ends
