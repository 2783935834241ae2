"""From an expected allocation to services: how many servers of each class serve each row in a slot."""

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, IntArray, as_floats, non_negative, one_of, require
from bilinq.errors import BadInput

METHODS = ("independent", "distinct")
SLACK = 1e-9  # how far, relatively, an allocation may exceed a capacity by a solver's rounding


def assign(
    expected: ArrayLike, queue: ArrayLike, servers: ArrayLike, rng: np.random.Generator, method: str = "independent"
) -> IntArray:
    """Return how many servers of class j serve class i, (..., I, J), drawn so that the mean is `expected`.

    Parameters
    ----------
    expected : (..., I, J) array
        y, at least zero; each column sums to at most `servers`.
    queue, servers : (..., I) and (..., J) arrays
        Jobs that wait and servers that are up.
    rng : numpy.random.Generator
        The source of the draws.
    method : "independent" or "distinct"
        Every server draws independently, and two may pick the same job (the paper, Eq. (29)); or dependent rounding,
        Eq. (30), in which no class gets more services than it has jobs, so each job is served at most once.

    Examples
    --------
    >>> assign([[0.5, 0.5]], queue=[1], servers=[1, 1], rng=np.random.default_rng(7), method="distinct").sum()
    np.int64(1)
    """
    from bilinq.assignment.kernels import draw_distinct, draw_independent, is_sound

    one_of("method", method, METHODS)
    y, Q, n = as_floats("expected", expected), as_floats("queue", queue), as_floats("servers", servers)
    if y.ndim < 2 or Q.shape != y.shape[:-1] or n.shape != (*y.shape[:-2], y.shape[-1]):
        raise BadInput(f"expected (..., I, J), queue (..., I) and servers (..., J) must fit; "
                       f"got {y.shape}, {Q.shape}, {n.shape}")  # fmt: skip
    shape = y.shape
    y, Q, n = y.reshape(-1, *shape[-2:]), Q.reshape(-1, shape[-2]), n.reshape(-1, shape[-1])
    if not is_sound(y, Q, n, SLACK):
        _explain(y.reshape(shape), Q.reshape(shape[:-1]), n.reshape(*shape[:-2], shape[-1]))
    draw = draw_independent if method == "independent" else draw_distinct
    limit = n if method == "independent" else Q
    tape = rng.random((len(y), 64))
    count = np.empty(y.shape, np.int64)
    while draw(y, limit, tape, np.zeros(len(y), np.int64), count) < 0:
        tape = np.concatenate([tape, rng.random(tape.shape)], axis=1)
    return count.reshape(shape)


def _explain(y: Array, Q: Array, n: Array) -> None:
    """Raise the error that names the argument that breaks a rule."""
    for name, value in (("expected", y), ("queue", Q), ("servers", n)):
        non_negative(name, value)
    excess = y.sum(axis=-2) - n * (1.0 + SLACK)
    require("expected - servers", excess, lambda x: x <= SLACK, "at most zero in each server class")
