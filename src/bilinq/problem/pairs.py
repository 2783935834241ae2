"""Which server classes may serve a job class, and how long they take: the general form of a problem's rates."""

from typing import NamedTuple, Self

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray


class Pairs(NamedTuple):
    """Rates, durations and eligible pairs of rows (job classes, or jobs) and server classes, in the form of Eq. (48).

    Attributes
    ----------
    rate : (..., rows) array
        f, the service rate of a row: the mean over its eligible server classes.
    duration : (..., rows, J) array, optional
        m, how much longer than 1 / f a server class takes: rate over the rate of the pair, and 1 where the pair is not
        eligible. None if every eligible pair has the rate of its row.
    eligible : (..., rows, J) bool array, optional
        None if every pair is eligible.
    """

    rate: Array
    duration: Array | None = None
    eligible: BoolArray | None = None

    @classmethod
    def of(cls, service_rate: Array, eligible: BoolArray | None, by_pair: bool) -> Self:
        """Return the pairs of rates (..., I), or (..., I, J) if they are given `by_pair`."""
        if not by_pair:
            return cls(service_rate, None, eligible)
        open_ = np.ones(service_rate.shape, np.bool_) if eligible is None else eligible
        low = service_rate.min(axis=-1, where=open_, initial=np.inf)
        high = service_rate.max(axis=-1, where=open_, initial=0.0)
        mean = service_rate.sum(axis=-1, where=open_) / open_.sum(axis=-1)
        rate = np.where(low == high, high, mean)  # the mean of equal numbers may differ from them by rounding
        duration = np.where(open_, rate[..., None] / service_rate, 1.0)
        return cls(rate, None if (duration == 1.0).all() else duration, eligible)

    @property
    def plain(self) -> bool:
        """Whether every pair is eligible and rates depend on the row only, as in the paper."""
        return self.duration is None and self.eligible is None

    def of_jobs(self, job_class: IntArray) -> Self:
        """Return the pairs of single jobs, from their classes (R, rows)."""
        rows = job_class[:, :, None]
        taken = (None if array is None else np.take_along_axis(array, rows, axis=1) for array in self[1:])
        return type(self)(np.take_along_axis(self.rate, job_class, axis=1), *taken)  # type: ignore[arg-type]

    def filled(self, shape: tuple[int, ...]) -> tuple[Array, BoolArray]:
        """Return durations and eligible pairs in their full shape (..., rows, J)."""
        m = np.broadcast_to(1.0, shape) if self.duration is None else self.duration
        return m, np.broadcast_to(True, shape) if self.eligible is None else self.eligible
