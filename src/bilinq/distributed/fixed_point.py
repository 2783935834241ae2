"""The fixed point of the rules computed directly, Eq. (33), with its certificate.

In general position an optimum uses fewer than I + J pairs. So a large program is solved over the few cheapest pairs of each
row, and others are added as prices require; the certificate checks all pairs.
"""

from dataclasses import dataclass

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.distributed.interior import AIM, AllPairs, SomePairs, polished, residual, search, start
from bilinq.distributed.penalties import Penalty
from bilinq.errors import NotSolved

TOLERANCE = 1e-9  # the largest residual that is returned
STEPS = 100
CLOSE = 1e-6  # the residual below which draws of jobs show no difference
LARGE = 300_000  # programs with more pairs than this start with a few pairs of each row
WIDTH, ADDED, ATTEMPTS = 20, 4, 16  # the number of pairs of a row at first, how many are added each time, and how often
ROUGH, SAMPLE = 1e-4, 500
"""The relative gap that is enough while pairs are missing, and how many job classes prices are guessed from."""
CHEAPER, SLIGHT = 1e-3, 1e-10
"""The part by which a pair must be cheaper than the chosen ones to count as missing, at first and at the end."""
USED = 1e-3  # pairs with more than this part of their row stay


@dataclass(frozen=True, slots=True)
class Equilibrium:
    """The allocation at which the rules of the nodes are at rest, with its certificate.

    Attributes
    ----------
    expected : (..., I, J) array
        y, exactly zero for idle pairs. Row sums and loads are unique; a split over tied server classes is not.
    price : (..., J) array
        p_j at the load; zero for a server class without servers.
    residual : (...) array
        The largest relative violation of Eq. (34), recomputed from y.
    steps : int
        Interior point steps.
    """

    expected: Array
    price: Array
    residual: Array
    steps: int


def equilibrium(a: Array, c: Array, n: Array, penalty: Penalty, eligible: BoolArray | None = None) -> Equilibrium:
    """Return the fixed points of a batch: a (B, I), c (B, I, J), n (B, J); `eligible` (B, I, J), by default all."""
    large = c[0].size > LARGE and c.shape[1] > SAMPLE and eligible is None
    y, steps = _one_by_one(a, c, n, penalty) if large else _over_all(a, c, n, penalty, eligible)
    open_n = np.where(n > 0.0, n, 1.0)
    price = np.where(n > 0.0, penalty.price(y.sum(axis=1), open_n), 0.0)
    live = (a > 0.0)[:, :, None] & (n > 0.0)[:, None, :]
    left = residual(y, a, c + price[:, None, :], live if eligible is None else live & eligible)
    _certify(left, TOLERANCE, steps)
    return Equilibrium(y, price, left, steps)


def close_rates(a: Array, c: Array, n: Array, penalty: Penalty, eligible: BoolArray | None = None) -> Array:
    """Return fixed points (B, I, J) with residuals of at most 1e-6, in a third of the time; for the slots of schedulers.

    Only pairs that are `eligible` (B, I, J) are used, by default all.
    """
    program = start(AllPairs(), a, c, n, penalty, eligible)
    steps = search(program, STEPS, enough=CLOSE)
    _certify(program.residual, CLOSE, steps)
    return np.where(program.live, program.y, 0.0)


def _certify(left: Array, most: float, steps: int) -> None:
    if np.max(left, initial=0.0) > most:
        raise NotSolved(
            f"fixed point not certified: residual {np.max(left):.1e} after {steps} steps; "
            "rescale queue / V or capacity so that they span fewer orders of magnitude, or choose a milder penalty"
        )


def _over_all(
    a: Array, c: Array, n: Array, penalty: Penalty, eligible: BoolArray | None = None
) -> tuple[Array, int]:  # fmt: skip
    """Return y (B, I, J) and the steps it took, with all pairs at once."""
    program = start(AllPairs(), a, c, n, penalty, eligible)
    steps = search(program, STEPS)
    return np.array([polished(program, b) for b in range(len(a))]).reshape(c.shape), steps


def _one_by_one(a: Array, c: Array, n: Array, penalty: Penalty) -> tuple[Array, int]:
    """Return the same, each member over few pairs, or over all if these are not enough."""
    y, steps = np.zeros(c.shape), 0
    for b in np.flatnonzero(a.any(axis=1) & n.any(axis=1)):
        member = a[[b]], c[b : b + 1], n[[b]], penalty
        found, more = _over_some(*member) or _over_all(*member)
        y[b], steps = found[0], steps + more
    return y, steps


def _over_some(a: Array, c: Array, n: Array, penalty: Penalty) -> tuple[Array, int] | None:
    """Return y (1, I, J) and its steps, or None if pairs are still missing after all attempts."""
    price, steps = _guess(a, c, n, penalty)
    best, aim = _excess(c, price, n), ROUGH
    chosen = _cheapest(best, WIDTH)
    for attempt in range(ATTEMPTS):
        few = SomePairs(chosen, c.shape[2])
        program = start(few, a, np.take_along_axis(c[0], chosen, axis=1)[None], n, penalty)
        steps += search(program, STEPS, aim)
        y = program.y[0] if aim == ROUGH else polished(program, 0)
        excess = _excess(c, penalty.price(few.loads(y[None]), program.n), n)
        missing = np.take_along_axis(excess, chosen, axis=1).min(axis=1).max() > (CHEAPER if aim == ROUGH else SLIGHT)
        if aim == AIM and not missing:
            full = np.zeros(c.shape)
            np.put_along_axis(full[0], chosen, y, axis=1)
            return full, steps
        aim = aim if missing else AIM
        np.minimum(best, excess, out=best)
        chosen = _cheapest(_with_used(best, chosen, y, excess), WIDTH + ADDED * attempt)
    return None


def _with_used(best: Array, chosen: IntArray, y: Array, out: Array) -> Array:
    """Return `best` (I, J) in `out`, with the used ones of the chosen pairs ahead of all others."""
    used = y > USED * y.sum(axis=1, keepdims=True)
    np.copyto(out, best)
    np.put_along_axis(out, chosen, np.where(used, -1.0, np.take_along_axis(best, chosen, axis=1)), axis=1)
    return out


def _guess(a: Array, c: Array, n: Array, penalty: Penalty) -> tuple[Array, int]:
    """Return prices (1, J), and the steps they took, as if some of the job classes had the jobs of all."""
    busy = np.flatnonzero(a[0])
    rows = busy[np.linspace(0, len(busy) - 1, min(len(busy), SAMPLE)).astype(np.int64)]
    program = start(AllPairs(), a[:, rows] * (a.sum() / a[:, rows].sum()), c[:, rows], n, penalty)
    steps = search(program, STEPS, ROUGH)
    return penalty.price(program.pairs.loads(program.y), program.n), steps


def _excess(c: Array, price: Array, n: Array) -> Array:
    """Return by which part each pair costs more than the cheapest of its row, (I, J); infinite without servers."""
    total = np.where(n > 0.0, c[0] + price, np.inf)
    total /= total.min(axis=1, keepdims=True)
    total -= 1.0
    return total


def _cheapest(excess: Array, width: int) -> IntArray:
    """Return about the `width` cheapest server classes of each row; ties within the noise are spread over all."""
    rows, columns = excess.shape
    width = min(width, columns)
    noise = CHEAPER * np.random.default_rng(0).random(rows + columns)
    shaken = excess + np.lib.stride_tricks.sliding_window_view(noise, columns)[:rows]
    return np.argpartition(shaken, width - 1, axis=1)[:, :width]
