"""Every exception of bilinq; `BilinqError` is the root of all of them."""


class BilinqError(Exception):
    """Root of every error that bilinq raises on purpose."""


class BadInput(BilinqError, ValueError):
    """An argument, file or request breaks a rule; the message names argument, rule and value."""


class NotSolved(BilinqError, ArithmeticError):
    """A solver could not certify an answer; the message says how far it got."""


class Diverged(BilinqError, ArithmeticError):
    """Rates that nodes compute together swing or grow and do not settle; the message says since when and why."""


class UnsafeGain(UserWarning):
    """A gain is beyond what is proved to be stable."""


class UnstableLoad(UserWarning):
    """The offered load is not below the capacity: queues will grow without bound."""
