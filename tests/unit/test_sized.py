"""Jobs that bring their length along."""

import numpy as np
import pytest

from bilinq import Problem
from bilinq.problem.instances import stack
from bilinq.simulation import Bernoulli, Poisson, Sized


@pytest.mark.parametrize("law", [Poisson(), Bernoulli()], ids=["poisson", "bernoulli"])
def test_lengths_depend_on_the_replication_alone(law: Poisson | Bernoulli) -> None:
    problem = Problem.synthetic(service_rate=0.2, seed=1)
    jobs = []
    for count in (1, 5):
        instances = stack([problem] * count)
        blocks = Sized(law).blocks(instances, 50, [np.random.default_rng(k) for k in range(count)])
        first, second = next(blocks), next(blocks)
        jobs.append([block.units[0, : block.start[0, -1]].tolist() for block in (first, second)])
    assert jobs[0] == jobs[1]


def test_lengths_have_the_mean_of_the_service_rate() -> None:
    """A geometric law with chance 1/5 has mean 5 and variance 20; 4,000 lengths, false alarm 1e-4."""
    problem = Problem.synthetic(service_rate=0.2, traffic=5.0, servers=8, seed=1)
    block = next(Sized(Bernoulli()).blocks(stack([problem]), 4000, [np.random.default_rng(1)]))
    units = block.units[0, : block.start[0, -1]]
    assert abs(units.mean() - 5.0) < 3.9 * np.sqrt(20 / units.size)
    assert abs(units.mean() - 4.5) > 3.9 * np.sqrt(20 / units.size)
