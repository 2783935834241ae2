"""All exceptions of bilinq; their root is `BilinqError`."""

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like `name` as a question in brackets for a message, or "" if none is.

    Examples
    --------
    >>> did_you_mean("prot", ["host", "port"]), did_you_mean("v", ["V"]), did_you_mean("colour", ["host"])
    (" (did you mean 'port'?)", " (did you mean 'V'?)", '')
    """
    from difflib import get_close_matches

    names = {one.lower().replace("-", "_"): one for one in known}
    found = get_close_matches(name.lower().replace("-", "_"), names, n=1)
    return f" (did you mean {names[found[0]]!r}?)" if found else ""


class BilinqError(Exception):
    """Root of every error that bilinq raises on purpose."""


class BadInput(BilinqError, ValueError):
    """An argument, file or request breaks a rule; the message names argument, rule and value."""


class NotInstalled(BilinqError, ImportError):
    """A package of an extra is missing; the message is the command that installs it."""


class NotSolved(BilinqError, ArithmeticError):
    """A solver could not certify an answer; the message gives the residual that it reached."""


class Diverged(BilinqError, ArithmeticError):
    """Rates that nodes compute together oscillate or grow instead of converging; the message gives round and cause."""


class Unreachable(BilinqError, ConnectionError):
    """An address does not answer or refuses the connection; the message names the address and the reason."""


class UnsafeGain(UserWarning):
    """A gain is above the proved limit of stability."""


class UnstableLoad(UserWarning):
    """The offered load is not below the capacity: queues will grow without bound."""


class UnprovedRadius(UserWarning):
    """A confidence radius is used with longer features or parameters than it is proved for."""


class NoEligibleServer(UserWarning):
    """A job class of a scheduler names no server class that is there, so its jobs wait."""


class Refused(BilinqError):
    """The live service refused a request; each subclass is one error response of the API."""


class NotFound(Refused, LookupError):
    """There is no such job, server, lease, class or key, or it belongs to another key."""


class NotAllowed(Refused):
    """The key lacks the scope, or the lease belongs to another server."""


class NoKey(Refused):
    """The request has no key, or one that is unknown, expired or revoked."""


class Conflict(Refused):
    """The request contradicts stored data: a used key with another body, a finished job, a name in use."""


class Stale(Conflict):
    """The lease has ended, or the fence is not the newest: another server may be serving the job."""


class Busy(Refused):
    """The backlog is full, or a key exceeds its rate; try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(Refused):
    """The service cannot answer now (no database, starting, stopping); try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Starting(Unavailable):
    """The service has just started and has done nothing yet, so that any call can be repeated."""


class BadState(BilinqError):
    """A snapshot is damaged or not sound; the message names the check that failed."""
