"""The oracle: hand-worked answers, corner cases, and the batch form."""

from unittest.mock import Mock

import numpy as np
import pytest

from bilinq.errors import BadInput, NotSolved, UnstableLoad
from bilinq.problem import Problem
from bilinq.problem.instances import stack
from bilinq.problem.oracle import Oracle, _certified, _solve, oracle, oracle_values


def table(reward: list[list[float]], traffic: list[float], servers: list[float]) -> Problem:
    return Problem(arrival_rate=traffic, servers=servers, mean_reward=reward, unbounded=True)


def test_best_servers_with_room() -> None:
    answer = oracle(table([[0.2, 0.9], [0.5, 0.4]], [0.5, 0.25], [1, 1]))
    assert answer.value == pytest.approx(0.5 * 0.9 + 0.25 * 0.5)
    assert answer.share.tolist() == [[0, 1], [1, 0]]
    assert answer.price.tolist() == [0, 0] and answer.residual < 1e-12


def test_ties_go_to_the_first_server() -> None:
    assert oracle(table([[0.5, 0.5]], [0.5], [1, 1])).share.tolist() == [[1, 0]]


def test_class_without_arrivals_goes_to_its_best_server() -> None:
    answer = oracle(table([[0.9, 0.1], [0.8, 0.1], [0.1, 0.7]], [1.0, 0.5, 0.0], [1, 1]))
    assert answer.share[2].tolist() == [0, 1]
    assert answer.share.sum(axis=1) == pytest.approx(np.ones(3))
    assert answer.value == pytest.approx(0.9 + 0.5 * 0.1)


def test_class_without_servers_is_left_alone() -> None:
    answer = oracle(table([[0.9, 0.1], [0.8, 0.3]], [0.5, 0.5], [0, 2]))
    assert answer.share.tolist() == [[0, 1], [0, 1]]
    assert answer.price == pytest.approx([0.8, 0.0])
    assert answer.residual < 1e-12


def test_nothing_arrives() -> None:
    answer = oracle(table([[0.9, 0.1]], [0.0], [1, 1]))
    assert answer.value == 0 and answer.share.tolist() == [[1, 0]]


def test_full_load_is_still_feasible() -> None:
    with pytest.warns(UnstableLoad):
        problem = table([[0.9, 0.1], [0.8, 0.3]], [1.0, 1.0], [1, 1])
    assert oracle(problem).value == pytest.approx(0.9 + 0.3)


def test_overload_is_refused() -> None:
    with pytest.warns(UnstableLoad):
        problem = table([[0.9, 0.1]], [2.5], [1, 1])
    with pytest.raises(BadInput, match=r"only for a load within capacity: rho = 2\.5, n = 2"):
        oracle(problem)
    with pytest.raises(BadInput, match=r"in replication 1: rho = 2\.5"):
        oracle_values(stack([table([[0.9, 0.1]], [0.5], [1, 1]), problem]))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_any_scale_of_load_and_reward(scale: float) -> None:
    """Multiplying traffic, servers and rewards scales r* by the square; the servers stay whole."""
    n = max(1.0, scale)
    reward = [[0.9 * scale, 0.1 * scale], [0.8 * scale, 0.3 * scale]]
    answer = oracle(table(reward, [0.8 * n, 0.7 * n], [n, n]))
    assert answer.value == pytest.approx((0.8 * 0.9 + 0.2 * 0.8 + 0.5 * 0.3) * scale * n)
    assert answer.share[1] == pytest.approx([2 / 7, 5 / 7])


def test_batch_equals_one_by_one() -> None:
    problems = [Problem.synthetic(seed=k, traffic=traffic) for k in range(10) for traffic in (0.5, 3.5)]
    assert oracle_values(stack(problems)) == pytest.approx([oracle(problem).value for problem in problems])


def test_batch_solves_a_repeated_problem_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = table([[0.9, 0.1], [0.8, 0.3]], [0.8, 0.7], [1, 1])
    spy = Mock(wraps=_solve)
    monkeypatch.setattr("bilinq.problem.oracle._solve", spy)
    values = oracle_values(stack([problem] * 50))
    assert spy.call_count == 1 and np.ptp(values) == 0


def test_uncertified_answer_raises() -> None:
    with pytest.raises(NotSolved, match=r"residual is 1\.0e-03"):
        _certified(Oracle(1.0, np.eye(2), np.zeros(2), 1e-3), np.ones(2))
