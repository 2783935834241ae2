"""A log of decisions: which server each job was given, with which chance, and what it earned."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, BoolArray, IntArray, finite, short
from bilinq.errors import BadInput

FIELDS = ("server", "reward", "features", "job_class", "probability", "eligible")


@dataclass(frozen=True, eq=False, kw_only=True)
class Log:
    """Decisions that were taken, a row for each job.

    Attributes
    ----------
    server : (N,) array
        The server class of each job: its name, or its column where `servers` is given.
    reward : (N,) array
    features : (N, d) array, optional
    job_class : (N,) array, optional
    probability : (N,) or (N, J) array, optional
        Chance with which the server was chosen, or the chances of all servers.
    eligible : (N, J) array of bool, optional
        Which servers could be chosen; default: all.
    servers : sequence of str, optional
        Names of the columns; default: the names in `server`, sorted.
    """

    server: ArrayLike
    reward: ArrayLike
    features: ArrayLike | None = None
    job_class: ArrayLike | None = None
    probability: ArrayLike | None = None
    eligible: ArrayLike | None = None
    servers: Sequence[str] | None = None

    @classmethod
    def of(cls, table: Any, features: Sequence[str] = (), servers: Sequence[str] | None = None) -> "Log":
        """Return the log in a dictionary of arrays, a pandas DataFrame or a PyArrow table.

        Its columns have the names of the attributes; `features` may be one column of vectors, or be listed by name.
        """
        if isinstance(table, Log):
            return table
        names = getattr(table, "column_names", None) or list(table.keys() if hasattr(table, "keys") else ())
        for name in ("server", "reward", *features):
            if name not in names:
                raise BadInput(
                    f"log must have a column {name!r}; got {short(', '.join(map(str, names)) or table, 200)}"
                )
        found = {name: _column(table[name]) for name in FIELDS if name in names}
        if features:
            found["features"] = np.stack([finite(name, _column(table[name])) for name in features], axis=1)
        return cls(**found, servers=servers)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the server classes (J,)."""
        if self.servers is not None:
            return tuple(map(str, self.servers))
        return tuple(map(str, np.unique(np.asarray(self.server)).tolist()))

    @cached_property
    def chosen(self) -> IntArray:
        """The column of the server of each job (N,)."""
        given = np.asarray(self.server)
        if given.ndim != 1 or not given.size:
            raise BadInput(f"server must have shape (jobs,) with at least one job; got {given.shape}")
        if given.dtype.kind in "iu" and self.servers is not None:
            for wrong in given[(given < 0) | (given >= len(self.names))].tolist():
                raise BadInput(f"server must be a column from 0 to {len(self.names) - 1}; got {wrong}")
            return given.astype(np.int64)
        number = {name: j for j, name in enumerate(self.names)}
        for wrong in {*map(str, given.tolist())} - set(number):
            raise BadInput(f"server must be one of {', '.join(self.names)}; got {wrong!r}")
        return np.array([number[str(name)] for name in given.tolist()], np.int64)

    @cached_property
    def earned(self) -> Array:
        """The rewards (N,)."""
        return self._rows("reward", finite("reward", self.reward), ())

    @cached_property
    def classes(self) -> tuple[tuple[str, ...], IntArray]:
        """The names of the job classes and which of them each job has (N,); one class if the log has none."""
        if self.job_class is None:
            return ("all",), np.zeros(self.chosen.size, np.int64)
        names, code = np.unique(np.asarray(self.job_class).astype(str), return_inverse=True)
        if code.shape != self.chosen.shape:
            raise BadInput(f"job_class must have shape {self.chosen.shape}; got {code.shape}")
        return tuple(names.tolist()), code.astype(np.int64)

    @cached_property
    def vectors(self) -> Array | None:
        """The features (N, d), or None."""
        if self.features is None:
            return None
        found = finite("features", self.features)
        return self._rows("features", found, found.shape[1:] if found.ndim == 2 else (1,))

    @cached_property
    def allowed(self) -> BoolArray:
        """Which servers could be chosen (N, J)."""
        if self.eligible is None:
            return np.ones((self.chosen.size, len(self.names)), np.bool_)
        found = self._rows("eligible", finite("eligible", self.eligible), (len(self.names),)) > 0
        wrong = np.flatnonzero(~found[np.arange(len(found)), self.chosen])
        if wrong.size:
            name = self.names[self.chosen[wrong[0]]]
            raise BadInput(f"eligible must be true for every server that was chosen; got job {wrong[0]} on {name!r}")
        return found

    @cached_property
    def chances(self) -> Array | None:
        """The chances (N,) or (N, J), each in (0, 1] for the chosen server, or None."""
        if self.probability is None:
            return None
        found = finite("probability", self.probability)
        found = self._rows("probability", found, () if found.ndim == 1 else (len(self.names),))
        taken = found if found.ndim == 1 else found[np.arange(len(found)), self.chosen]
        for k in np.flatnonzero((taken <= 0) | (taken > 1 + 1e-9)).tolist():
            raise BadInput(f"probability must lie in (0, 1] for the chosen server; got probability[{k}] = {taken[k]:g}")
        return found

    def _rows(self, name: str, array: Array, shape: tuple[int, ...]) -> Array:
        wanted = (self.chosen.size, *shape)
        if array.shape != wanted:
            raise BadInput(f"{name} must have shape {wanted}; got {array.shape}")
        return array


def _column(values: Any) -> Any:
    """Return a column as an array; one of vectors becomes a matrix."""
    array = np.asarray(values.to_pylist() if hasattr(values, "to_pylist") else values)
    if array.dtype == object and array.ndim == 1 and array.size and hasattr(array[0], "__len__"):
        return array.astype(str) if isinstance(array[0], str) else np.array([list(row) for row in array])
    return array
