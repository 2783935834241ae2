"""Problems of equal shapes as stacked arrays, for a batch of replications."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bilinq.arrays import Array, BoolArray, short
from bilinq.errors import BadInput
from bilinq.problem.pairs import Pairs
from bilinq.problem.problem import Problem


@dataclass(frozen=True, eq=False)
class Instances:
    """The arrays of R problems with equal shapes, read-only, replications first.

    If every replication has the same problem, the arrays are views that repeat it without a copy (stride zero along the
    first axis).

    Attributes
    ----------
    job_features, server_features : (R, I, d1) and (R, J, d2) arrays
    mean_reward, noise : (R, I, J) arrays
    arrival_rate, holding_cost : (R, I) arrays
    service_rate : (R, I) array
        Or (R, I, J), if the rates of a problem depend on the server class.
    servers : (R, J) array
    eligible : (R, I, J) bool array, optional
        None if every pair of every problem is eligible.
    """

    job_features: Array
    server_features: Array
    mean_reward: Array
    arrival_rate: Array
    service_rate: Array
    servers: Array
    noise: Array
    holding_cost: Array
    eligible: BoolArray | None = None

    @property
    def count(self) -> int:
        """Number of replications, R."""
        return len(self.mean_reward)

    @property
    def traffic(self) -> Array:
        """Traffic intensity of each replication and job class (R, I)."""
        return self.arrival_rate / self.pairs.rate

    @property
    def pairs(self) -> Pairs:
        """Rates, durations and eligible pairs in the form of Eq. (48)."""
        return Pairs.of(self.service_rate, self.eligible, self.service_rate.ndim == 3)

    def only(self, chosen: BoolArray) -> "Instances":
        """Return the `chosen` (R,) replications."""
        given: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return Instances(**{name: None if array is None else array[chosen] for name, array in given.items()})  # type: ignore[arg-type]


def stack(problems: Sequence[Problem]) -> Instances:
    """Stack problems of equal shapes, one for each replication.

    Examples
    --------
    >>> stack([Problem.synthetic(seed=k) for k in range(3)]).mean_reward.shape
    (3, 10, 2)
    """
    batch, shapes = list(problems), []
    for k, problem in enumerate(batch):
        if not isinstance(problem, Problem):
            raise BadInput(f"problems must contain Problem objects; got problems[{k}] = {short(problem)}")
        shapes.append((problem.job_features.shape, problem.server_features.shape))
        if shapes[k] != shapes[0]:
            found = f"problems[0] has {shapes[0]}, problems[{k}] has {shapes[k]}"
            raise BadInput(f"problems must agree in job_features and server_features shapes; got {found}")
    if not batch:
        raise BadInput("problems must contain at least one problem; got none")
    return Instances(**{field.name: _stacked(field.name, batch) for field in fields(Instances)})


def _stacked(name: str, batch: list[Problem]) -> Any:
    values = [getattr(problem, name) for problem in batch]
    if all(value is None for value in values):
        return None
    if all(problem is batch[0] for problem in batch):
        return np.broadcast_to(values[0], (len(batch), *values[0].shape))
    array = np.stack(_alike(name, values, batch[0].mean_reward.shape))
    array.setflags(write=False)
    return array


def _alike(name: str, values: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Return the arrays of some problems in one shape, if only a part of them has rates or eligibility by pair."""
    if name == "eligible":
        return [np.ones(shape, np.bool_) if value is None else value for value in values]
    if len({value.ndim for value in values}) == 1:
        return values
    return [value if value.ndim == 2 else np.broadcast_to(value[:, None], shape) for value in values]
