"""Arrival times in continuous time: Poisson, in bursts, or recorded."""

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, finite, positive, require, scalar
from bilinq.errors import BadInput


def poisson(rate: float, number: int, rng: np.random.Generator) -> Array:
    """Return `number` arrival times (number,) of a Poisson process with `rate` jobs per unit of time."""
    mean = 1.0 / scalar("rate", rate, positive)
    return np.cumsum(rng.exponential(mean, count("number", number)))


def bursty(
    rate: float, number: int, rng: np.random.Generator, *, burst: float = 4.0, share: float = 0.1, length: float = 10.0
) -> Array:
    """Return `number` arrival times (number,) of a Poisson process that switches between bursts and lulls.

    A two-state Markov chain modulates the rate, which is `burst` times as high in a burst as in a lull; its long-run
    mean is `rate`. The chain starts in its stationary law.

    Parameters
    ----------
    rate : float
        Mean number of jobs per unit of time.
    burst : float
        Rate in a burst over rate in a lull, at least one.
    share : float
        Part of the time that is burst, in (0, 1).
    length : float
        Mean length of a burst.

    See Also
    --------
    dispersion : the index of dispersion of this process
    """
    high, low, out, back = _two_states(rate, burst, share, length)
    n = count("number", number)
    in_burst, now, parts, found = bool(rng.random() < share), 0.0, [], 0
    while found < n:
        span = rng.exponential(1.0 / (out if in_burst else back))
        came = rng.poisson((high if in_burst else low) * span)
        parts.append(now + np.sort(rng.random(came)) * span)  # given their number, arrivals are uniform
        found, now, in_burst = found + came, now + span, not in_burst
    return np.concatenate(parts)[:n]


def dispersion(rate: float, *, burst: float = 4.0, share: float = 0.1, length: float = 10.0) -> float:
    """Return the index of dispersion of `bursty` arrivals: variance over mean of the jobs in a long time.

    With rates a and b in the two states, rates out and back of the chain, and p the part of the time in bursts, the
    autocovariance of the rate at lag t is p (1 - p) (a - b)^2 exp(-(out + back) t). Its integral over all lags is added to
    the variance of a Poisson process, so the index is 1 + 2 p (1 - p) (a - b)^2 / ((out + back) rate). Without bursts it
    is one.
    """
    high, low, out, back = _two_states(rate, burst, share, length)
    variance = share * (1.0 - share) * (high - low) ** 2
    return 1.0 + 2.0 * variance / ((out + back) * rate)


def recorded(times: ArrayLike, number: int, rate: float) -> Array:
    """Return `number` arrival times (number,): recorded ones, stretched so that their mean rate is `rate`.

    Where the record is too short it is repeated end to end, with the mean gap between two copies.

    Parameters
    ----------
    times : (M,) array
        At least two recorded times, never decreasing and not all equal.
    """
    raw = finite("times", times)
    n, pace = count("number", number), scalar("rate", rate, positive)
    if raw.ndim != 1 or raw.size < 2:
        raise BadInput(f"times must be a list of at least two times; got shape {raw.shape}")
    require("times", np.diff(raw, prepend=raw[0]), lambda x: x >= 0.0, "in order: each step non-negative")
    if raw[-1] <= raw[0]:
        raise BadInput(f"times must not all be equal; got {raw.size} times of {raw[0]:g}")
    shape = (raw - raw[0]) / (raw[-1] - raw[0]) * (raw.size - 1)  # mean gap one
    copies = -(-n // raw.size)
    long = (shape + raw.size * np.arange(copies)[:, None]).ravel()[:n]
    return np.asarray(long / pace)


def _two_states(rate: float, burst: float, share: float, length: float) -> tuple[float, float, float, float]:
    """Return the arrival rates in bursts and lulls, and the rates at which bursts and lulls end."""
    mean, ratio = scalar("rate", rate, positive), scalar("burst", burst, positive)
    part, stay = scalar("share", share, positive), scalar("length", length, positive)
    if ratio < 1.0:
        raise BadInput(f"burst must be at least 1; got {ratio:g}")
    if part >= 1.0:
        raise BadInput(f"share must be below 1; got {part:g}")
    low = mean / (1.0 - part + part * ratio)
    out = 1.0 / stay
    return ratio * low, low, out, out * part / (1.0 - part)
