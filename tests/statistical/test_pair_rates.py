"""Service rates by pair: queues of an exact Markov chain, the rule of thumb, and stability where the linear program says."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

from agreement import agrees
from bilinq import KnownRewards, MaxWeight, Policy, Problem, Sabr, simulate
from bilinq.arrays import Array
from bilinq.errors import UnstableLoad
from bilinq.learning import Outcome

ALARM = 1e-4
LAM = np.array([0.35, 0.2])
MU = np.array([[0.5, 0.2], [0.9, 0.4]])


class OwnFirst(Policy):
    """Server 0 serves class 0. Server 1 serves class 1, or a second job of class 0 if there is none."""

    assignment = "distinct"

    def decide(self, state: Any, queue: Array, capacity: Array) -> Array:
        y = np.zeros((*queue.shape, 2))
        y[:, 0, 0], y[:, 1, 1] = queue[:, 0] > 0, queue[:, 1] > 0
        y[:, 0, 1] = (queue[:, 1] == 0) & (queue[:, 0] > 1)
        return y

    def learn(self, state: Any, outcome: Outcome) -> Any:
        return state


def chain_queues(mu: Array, size: int = 45) -> Array:
    """Return the mean queues (2,) of `OwnFirst` with Bernoulli arrivals, from the chain's stationary distribution.

    The state is the queue after arrivals, cut at `size` jobs of a class; then services complete and at most one job comes.
    """
    place = np.arange(size * size).reshape(size, size)
    move = np.zeros((size * size, size * size))
    for a, b in itertools.product(range(size), range(size)):
        first = mu[0, 0] * (a > 0)
        second = mu[0, 1] * (b == 0 and a > 1)
        third = mu[1, 1] * (b > 0)
        for one, two, three in itertools.product((0, 1), repeat=3):
            chance = float(np.prod([p if hit else 1 - p for p, hit in ((first, one), (second, two), (third, three))]))
            if not chance:
                continue
            left, rest = a - one - two, b - three
            move[place[a, b], place[left, rest]] += chance * (1 - LAM.sum())
            move[place[a, b], place[min(left + 1, size - 1), rest]] += chance * LAM[0]
            move[place[a, b], place[left, min(rest + 1, size - 1)]] += chance * LAM[1]
    balance = np.vstack([(move.T - np.eye(size * size))[1:], np.ones(size * size)])
    law = np.linalg.solve(balance, np.append(np.zeros(size * size - 1), 1.0)).reshape(size, size)
    assert law[-1].sum() + law[:, -1].sum() < 1e-9
    return np.array([law.sum(axis=1) @ np.arange(size), law.sum(axis=0) @ np.arange(size)])


def test_two_classes_against_an_exact_markov_chain() -> None:
    """Class 0 is helped by a server of another rate. Queues are those of the chain; with the rates of the class's own or
    of the mean pair everywhere, or 3 % off, the test notices.
    """
    problem = Problem(arrival_rate=LAM, servers=[1, 1], mean_reward=np.zeros((2, 2)), service_rate=MU,
                      eligible=[[True, True], [False, True]])  # fmt: skip
    runs = simulate(problem, OwnFirst(), slots=6500, replications=200, seed=4, record_jobs=False)
    queue = runs.queue[:, 500:].mean(axis=1)
    expected = chain_queues(MU)
    assert agrees(queue, expected, false_alarm=ALARM)
    assert not agrees(queue, 1.03 * expected, false_alarm=ALARM)
    for wrong in ([[0.5, 0.5], [0.9, 0.4]], [[0.35, 0.35], [0.9, 0.4]], [[0.5, 0.2], [0.9, 0.65]]):
        assert not agrees(queue, chain_queues(np.array(wrong)), false_alarm=ALARM)


def test_rule_of_thumb_with_rates_by_pair() -> None:
    """Eq. (54) is exact where picks are distinct and servers ample: departures are linear in Q. Five per cent is noticed.

    c = (0.3, 1.0), mu = (0.1, 0.5): class 0 prefers the fast server at 2 slots to the better one at 3. Class 1 may use only
    server class 0: 0.8 / 0.4. Without its mask it would use server class 1 at 0.3 / 0.6.
    """
    problem = Problem(arrival_rate=[0.2, 0.15], servers=[8, 8], mean_reward=[[0.9, 0.2], [0.4, 0.9]],
                      service_rate=[[0.1, 0.5], [0.4, 0.6]], eligible=[[True, True], [True, False]])  # fmt: skip
    V, weight = 100.0, np.array([1.0, 2.0])
    policy = KnownRewards(V=V, weight=weight, assignment="distinct")
    runs = simulate(problem, policy, slots=8_000, replications=40, seed=6, record_jobs=False)
    queue = runs.queue[:, 3_000:].mean(axis=1)
    expected = problem.arrival_rate * V * np.array([1.0 / 0.5, 0.8 / 0.4]) / weight
    assert agrees(queue, expected, false_alarm=ALARM)
    assert not agrees(queue, expected * [1.05, 1.0], false_alarm=ALARM)
    assert not agrees(queue, expected * [1.0, 0.95], false_alarm=ALARM)
    for wrong in ([0.3 / 0.1, 0.8 / 0.4], [1.0 / 0.5, 0.3 / 0.6], [0.3 / 0.3, 0.8 / 0.4]):
        assert not agrees(queue, problem.arrival_rate * V * np.array(wrong) / weight, false_alarm=ALARM)


def edge(load: float) -> Problem:
    """Return a system whose load is `load`, worked out by hand.

    At load 1: class 0 (0.3 jobs, only server 0, rate 0.5) takes 0.6 of server 0. Class 1 (0.6 jobs) gets 0.5 from server 1,
    and the other 0.1 at rate 0.25 take 0.4 of server 0. At their best rates the classes would need only 1.8 of 2 servers.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableLoad)
        problem = Problem(arrival_rate=[0.3 * load, 0.6 * load], servers=[1, 1], mean_reward=[[0.5, 0.1], [0.2, 0.6]],
                          service_rate=[[0.5, 0.9], [0.25, 0.5]], eligible=[[True, False], [True, True]])  # fmt: skip
    assert problem.load_factor == pytest.approx(load)
    return problem


@pytest.mark.parametrize(
    "policy",
    [
        KnownRewards(V=2.0, assignment="distinct", limit="queue", work_conserving=True),
        Sabr(V=2.0, assignment="distinct", work_conserving=True),
        MaxWeight(V=1.0),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_stability_where_the_linear_program_says(policy: Policy) -> None:
    """The work (2 Q_0 + 4 Q_1) / 3, by the prices of the program, grows by load - 1 a slot above load one, and not below.

    At load 0.94 growth of 0.01 a slot would be noticed; at load 1.06 it is 0.06 to 20 %.
    """
    slots, replications = 16_000, 12

    def growth(load: float) -> Array:
        runs = simulate(edge(load), policy, slots=slots, replications=replications, seed=9, record_jobs=False)
        work = runs.queue @ np.array([2.0, 4.0]) / 3.0
        quarter = slots // 4
        return np.asarray(
            (work[:, -quarter:].mean(axis=1) - work[:, quarter : 2 * quarter].mean(axis=1)) / (2 * quarter)
        )

    below, above = growth(0.94), growth(1.06)
    assert agrees(below, 0.0, false_alarm=ALARM) and not agrees(below, 0.01, false_alarm=ALARM)
    assert abs(above.mean() - 0.06) < 0.012 and not agrees(above, 0.0, false_alarm=ALARM)
