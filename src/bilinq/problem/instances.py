"""Problems of equal shapes as stacked arrays, for a batch of replications."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from bilinq.arrays import Array, short
from bilinq.errors import BadInput
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
    arrival_rate, service_rate, holding_cost : (R, I) arrays
    servers : (R, J) array
    """

    job_features: Array
    server_features: Array
    mean_reward: Array
    arrival_rate: Array
    service_rate: Array
    servers: Array
    noise: Array
    holding_cost: Array

    @property
    def count(self) -> int:
        """Number of replications, R."""
        return len(self.mean_reward)

    @property
    def traffic(self) -> Array:
        """Traffic intensity of each replication and job class (R, I)."""
        return self.arrival_rate / self.service_rate


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


def _stacked(name: str, batch: list[Problem]) -> Array:
    first: Array = getattr(batch[0], name)
    if all(problem is batch[0] for problem in batch):
        return np.broadcast_to(first, (len(batch), *first.shape))
    array = np.stack([getattr(problem, name) for problem in batch])
    array.setflags(write=False)
    return array
