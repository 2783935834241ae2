"""Sums up observations of pairs chunk by chunk: numbers, means and spreads, in memory that grows with the pairs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.errors import BadInput
from bilinq.traces.moments import Moments
from bilinq.traces.reward_reading import Chunk


@dataclass(eq=False)
class Side:
    """The job classes, or the server classes, of a file.

    Attributes
    ----------
    column : str
        The column with their names.
    features : sequence of str
        The columns with their features, constant within a class.
    only : sequence of str, optional
        The classes to take in, in their order; all, in order of appearance, unless given.
    number : dict
        Number of each class by name.
    vectors : (classes, features) array
        What the feature columns say of each class, NaN before its first row.
    left_out : Counter
        Rows of classes that are not taken in, by name.
    """

    column: str
    features: Sequence[str]
    only: Sequence[str] | None = None
    number: dict[str, int] = field(default_factory=dict)
    vectors: Array = field(default_factory=lambda: np.zeros((0, 0)))
    left_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.number.update((name, k) for k, name in enumerate(self.only or ()))

    def select(self, chunk: Chunk, rows: IntArray) -> IntArray:
        """Return those of `rows` whose class is taken in, and count the others."""
        if self.only is None:
            return rows
        names, code = chunk.text[self.column]
        wanted = np.array([name in self.number for name in names], np.bool_)[code[rows]]
        self.left_out.update(names[k] for k in code[rows[~wanted]].tolist())
        return rows[wanted]

    def classes(self, chunk: Chunk, rows: IntArray) -> IntArray:
        """Return the number of the class of each of `rows`; new classes get the next numbers in order of appearance."""
        names, code = chunk.text[self.column]
        present, first, of = np.unique(code[rows], return_index=True, return_inverse=True)
        for k in present[np.argsort(first)].tolist():
            self.number.setdefault(names[k], len(self.number))
        return np.array([self.number[names[k]] for k in present.tolist()], np.int64)[of]

    def take_features(self, chunk: Chunk, rows: IntArray, of: IntArray) -> None:
        """Note the features of the classes `of` the `rows`, or raise where a class has two values."""
        if not self.features:
            return
        values = np.stack([chunk.numbers[column][rows] for column in self.features], axis=1)
        fresh = np.full((len(self.number) - len(self.vectors), len(self.features)), np.nan)
        self.vectors = np.concatenate([self.vectors.reshape(-1, len(self.features)), fresh])
        new = np.flatnonzero(np.isnan(self.vectors[of, 0]))[::-1]
        self.vectors[of[new]] = values[new]  # backwards: a class gets the values of its first row
        for k, column in np.argwhere(values != self.vectors[of]).tolist():
            name = list(self.number)[of[k]]
            rule = f"{self.features[column]} must be the same in all rows of {self.column} {name!r}"
            held = f"{self.vectors[of[k], column]:.12g} so far"
            raise chunk.fault(int(rows[k]), f"{rule}, {held}; got {values[k, column]:.12g}")


@dataclass(eq=False)
class Tally:
    """What a file's observations come to.

    Attributes
    ----------
    pairs : dict
        By numbers of job class and server class the pair's place in `moments`.
    moments : Moments
        Of the rewards of each pair.
    low, high : float
        The smallest and the largest reward.
    times : list of (rows,) arrays
        Of each chunk the time of its rows, where they are wanted; `jobs` has their classes.
    """

    job: Side
    server: Side
    reward: str
    time: str | None = None
    bounds: tuple[float, float] | None = None
    pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    moments: Moments = field(default_factory=lambda: Moments(16))
    low: float = np.inf
    high: float = -np.inf
    times: list[Array] = field(default_factory=list)
    jobs: list[IntArray] = field(default_factory=list)

    def take(self, chunk: Chunk) -> None:
        """Take in a chunk of rows."""
        rows = self.server.select(chunk, self.job.select(chunk, np.arange(len(chunk.numbers[self.reward]))))
        if not rows.size:
            return
        i, j = self.job.classes(chunk, rows), self.server.classes(chunk, rows)
        self.job.take_features(chunk, rows, i)
        self.server.take_features(chunk, rows, j)
        self._check_bounds(chunk, rows)
        self._add(i, j, chunk.numbers[self.reward][rows])
        if self.time is not None:
            self.times.append(chunk.numbers[self.time][rows])
            self.jobs.append(i)

    def _check_bounds(self, chunk: Chunk, rows: IntArray) -> None:
        if self.bounds is None:
            return
        rewards, (low, high) = chunk.numbers[self.reward], self.bounds
        for k in rows[(rewards[rows] < low) | (rewards[rows] > high)].tolist():
            raise chunk.fault(k, f"{self.reward} must lie in reward_range, {low:g} to {high:g}; got {rewards[k]:g}")

    def _add(self, i: IntArray, j: IntArray, rewards: Array) -> None:
        self.low, self.high = min(self.low, float(rewards.min())), max(self.high, float(rewards.max()))
        width = len(self.server.number)
        codes, of = np.unique(i * width + j, return_inverse=True)
        places = [self.pairs.setdefault(divmod(code, width), len(self.pairs)) for code in codes.tolist()]
        if len(self.pairs) > self.moments.count.size:
            self.moments = _roomier(self.moments, 2 * len(self.pairs))
        self.moments.add(np.array(places)[of], rewards)

    def left_out(self) -> dict[str, int]:
        """Return the rows that were left out, by the class because of which they were."""
        sides = (self.job, self.server)
        return {f"{side.column} {name!r}": rows for side in sides for name, rows in side.left_out.items()}

    def tables(self) -> tuple[IntArray, Array, Array]:
        """Return numbers, means and sums of squared deviations, each (I, J), zero where nothing was seen."""
        shape = (len(self.job.number), len(self.server.number))
        count, mean, spread = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
        i, j = np.array(list(self.pairs)).T
        for table, values in ((count, self.moments.count), (mean, self.moments.mean), (spread, self.moments.deviation)):
            table[i, j] = values[: i.size]
        return count, mean, spread

    def check_seen(self, file: object) -> None:
        """Raise if a class that was asked for, or any at all, has no row."""
        if not self.pairs:
            raise BadInput(f"{file}: must hold at least one row of the classes asked for; got none")
        for side, axis in ((self.job, 0), (self.server, 1)):
            seen = {pair[axis] for pair in self.pairs}
            for name, k in side.number.items():
                if k not in seen:
                    raise BadInput(f"{file}: must hold a row of {side.column} {name!r}; got none")


def _roomier(moments: Moments, groups: int) -> Moments:
    """Return the same with room for more groups."""
    wide = Moments(groups)
    for name in ("count", "mean", "deviation"):
        known = getattr(moments, name)
        getattr(wide, name)[: known.size] = known
    return wide
