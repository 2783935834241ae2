"""What `assign` accepts, and cases without chance."""

from typing import Any

import numpy as np
import pytest

from bilinq.assignment import assign
from bilinq.errors import BadInput

METHODS = ["independent", "distinct"]


@pytest.mark.parametrize("method", METHODS)
def test_certain_services(method: str) -> None:
    """If every server is certain to serve one class, there is nothing to draw, in any batch."""
    expected = np.zeros((2, 3, 2, 2))
    expected[..., 0, 0], expected[..., 1, 1] = 3.0, 1.0
    queue, servers = np.full((2, 3, 2), 5.0), np.broadcast_to([3.0, 1.0], (2, 3, 2))
    count = assign(expected, queue, servers, np.random.default_rng(0), method)
    assert count.shape == expected.shape and count.dtype == np.int64
    assert (count == expected).all()


def test_distinct_shares_one_job() -> None:
    """One job that two servers are to serve by halves is served by one of them."""
    for seed in range(20):
        count = assign([[0.5, 0.5]], [1], [1, 1], np.random.default_rng(seed), "distinct")
        assert sorted(count[0].tolist()) == [0, 1]


@pytest.mark.parametrize("method", METHODS)
def test_same_generator_same_draw(method: str) -> None:
    y = np.full((50, 3, 2), 0.3)
    draws = [assign(y, np.ones((50, 3)), np.ones((50, 2)), np.random.default_rng(3), method) for _ in range(2)]
    assert (draws[0] == draws[1]).all() and draws[0].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "greedy"}, "method must be one of 'independent', 'distinct'; got 'greedy'"),
        ({"expected": [[-0.1], [0.2]]}, r"expected must be non-negative; got expected\[0, 0\] = -0.1"),
        ({"expected": [[np.nan], [0.2]]}, r"expected must be finite; got expected\[0, 0\] = nan"),
        ({"queue": [-1, 2]}, r"queue must be non-negative; got queue\[0\] = -1"),
        ({"servers": [-1]}, r"servers must be non-negative; got servers\[0\] = -1"),
        ({"expected": [0.5, 0.5]}, r"must fit; got \(2,\), \(2,\), \(1,\)"),
        ({"queue": [1, 2, 3]}, r"must fit; got \(2, 1\), \(3,\), \(1,\)"),
        ({"servers": [1, 1]}, r"must fit; got \(2, 1\), \(2,\), \(2,\)"),
        ({"expected": [[0.9], [0.2]]}, "at most zero in each server class"),
        ({"expected": [["a"], ["b"]]}, "expected must be numeric"),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"expected": [[0.5], [0.2]], "queue": [1, 2], "servers": [1]}
    with pytest.raises(BadInput, match=message):
        assign(**(arguments | changes), rng=np.random.default_rng(0))
