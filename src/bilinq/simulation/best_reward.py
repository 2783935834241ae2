"""The best reward per slot that regret is measured against: the oracle at the rates and capacities of the run itself."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bilinq.arrays import Array
from bilinq.problem.instances import Instances
from bilinq.problem.oracle import has_oracle, oracle_values
from bilinq.simulation.arrivals import AllUp, Arrivals, Capacity


class BestReward(NamedTuple):
    """r* of each replication (R,), NaN where it is not known, and what it refers to or why it is not known."""

    value: Array
    text: str


def best_reward(
    instances: Instances, arrivals: Arrivals, service: str, capacity: Capacity, mean_capacity: Array, slots: int
) -> BestReward:
    """Return the oracle's reward per slot, Eq. (2), for the work that arrives and the servers that were up on average.

    Jobs may wait for servers, so no policy earns more in the long run than the oracle with the mean capacity (R, J).
    """
    rates = arrivals.rates(instances, slots)
    if rates is None:
        reason = f"{type(arrivals).__name__} does not say its rates (method rates), so the best reward is not known"
        return BestReward(np.full(instances.count, np.nan), reason)
    real = _realised(instances, *rates, service)
    parts = [] if rates[0] is instances.arrival_rate else [f"the rates of {type(arrivals).__name__}"]
    if not isinstance(capacity, AllUp):
        real = replace(real, servers=mean_capacity)
        parts.append(f"the servers that {type(capacity).__name__} left up on average")
    value = _values(real)
    text = f"the oracle with {' and '.join(parts) or 'the rates and servers of the problem'}"
    if missing := int(np.isnan(value).sum()):
        text += f"; the load exceeds capacity in {missing} of {value.size} replications, which have no best reward"
    return BestReward(value, text)


def _realised(instances: Instances, jobs: Array, units: Array, service: str) -> Instances:
    """Return the instances with `jobs` per slot (R, I); of mean size `units` where a service removes one unit."""
    if service == "geometric":
        return replace(instances, arrival_rate=jobs)
    return replace(instances, arrival_rate=jobs * units, service_rate=np.ones_like(jobs))


def _values(instances: Instances) -> Array:
    stable = has_oracle(instances)
    value = np.full(instances.count, np.nan)
    if stable.any():
        value[stable] = oracle_values(instances.only(stable))
    return value
