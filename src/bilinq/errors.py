"""Every exception of bilinq; `BilinqError` is the root of all of them."""


class BilinqError(Exception):
    """Root of every error that bilinq raises on purpose."""


class BadInput(BilinqError, ValueError):
    """An argument, file or request breaks a rule; the message names argument, rule and value."""


class NotSolved(BilinqError, ArithmeticError):
    """A solver could not certify an answer; the message says how far it got."""


class Diverged(BilinqError, ArithmeticError):
    """Rates that nodes compute together swing or grow and do not settle; the message says since when and why."""


class Unreachable(BilinqError, ConnectionError):
    """Nothing answers at an address, or it does not let us in; the message names the address and what is known."""


class UnsafeGain(UserWarning):
    """A gain is beyond what is proved to be stable."""


class UnstableLoad(UserWarning):
    """The offered load is not below the capacity: queues will grow without bound."""


class Refused(BilinqError):
    """The live service does not do what was asked; each kind is one answer of the API."""


class NotFound(Refused, LookupError):
    """There is no such job, server, lease, class or key, or it belongs to somebody else."""


class NotAllowed(Refused):
    """The key lacks the scope, or the lease belongs to another server."""


class NoKey(Refused):
    """No key, or one that is unknown, expired or revoked."""


class Conflict(Refused):
    """What was asked contradicts what is stored: a used key with another body, a finished job, a name in use."""


class Stale(Conflict):
    """The lease has ended, or the fence is not the newest: somebody else may serve the job by now."""


class Busy(Refused):
    """Too much at once: a full backlog, or a key beyond its rate; ask again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(Refused):
    """The service cannot answer now (database gone, starting, stopping); ask again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BadState(BilinqError):
    """A snapshot is damaged or not sound; the message says which check failed."""
