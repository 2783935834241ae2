"""The answer to a program, and batches of programs: what policies use."""

import logging
import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np

from bilinq.allocation.arguments import Program
from bilinq.arrays import Array, non_negative, positive, require
from bilinq.display import data_frame, html_table
from bilinq.errors import BadInput

log = logging.getLogger("bilinq.allocation")
TOLERANCE = 1e-9  # the largest residual of an answer that counts as certified
MOST_SHOWN = 6  # prices in the text of an allocation
AGAIN = 3  # how often an answer that does not certify is solved again from its prices
NO_PRICE = np.empty((0, 0))  # passed to the kernel for a cold start


class Allocation(NamedTuple):
    """An expected allocation with its prices and its certificate; always feasible.

    Attributes
    ----------
    expected : (..., I, J) array
        y, the expected number of services of class i that servers of class j start. Unused pairs are exactly zero.
    price : (..., J) array
        q, the value of one more server of class j; zero where servers stay idle, infinite only without any server.
    residual : (...) array or float
        The largest relative violation of the optimality conditions, Eq. (7), recomputed from y and q.
    steps : int
        Steps of the solver over the whole batch; zero where no server class is saturated.
    gap : (...) array or float
        The duality gap: the program's value is below the best possible one by no more than this.
    """

    expected: Array
    price: Array
    residual: Array | float
    steps: int
    gap: Array | float = np.nan

    @property
    def status(self) -> Literal["certified", "uncertified"]:
        """Whether every residual is at most 1e-9."""
        return "certified" if np.all(np.asarray(self.residual) <= TOLERANCE) else "uncertified"

    def to_pandas(self) -> Any:
        """Return a DataFrame of the expected services, job classes by server classes; needs pandas.

        Of a sparse allocation it has a row for each pair that is used.
        """
        if hasattr(self.expected, "tocoo"):
            used = self.expected.tocoo()
            return data_frame({"job class": used.row, "server class": used.col, "expected": used.data})
        if self.expected.ndim != 2:
            raise BadInput(f"to_pandas is for one allocation; got a batch of shape {self.expected.shape[:-2]}")
        return data_frame(self.expected)

    def _facts(self) -> dict[str, str]:
        prices = [f"{q:.4g}" for q in np.ravel(self.price)[:MOST_SHOWN].tolist()]
        more = ", ..." if self.price.size > MOST_SHOWN else ""
        return {
            "shape": " x ".join(map(str, self.expected.shape)), "services": f"{self.expected.sum():.4g}",
            "price": f"[{', '.join(prices)}{more}]", "residual": f"{np.max(self.residual, initial=0.0):.2g}",
            "status": self.status,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"Allocation({', '.join(f'{name}={text}' for name, text in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html_table("Allocation", self._facts())


class Tally:
    """How many allocations of this process's policies could not be certified; the first is logged, the metrics show all."""

    uncertified = 0

    def add(self, batch: Allocation) -> None:
        """Count the answers of a batch that are not certified."""
        if batch.status == "uncertified":
            if not self.uncertified:
                text = (
                    "an allocation could not be certified: residual %.1e; it is feasible and used. This is logged once"
                )
                log.warning(text, np.max(batch.residual))
            self.uncertified += int(np.sum(~(np.asarray(batch.residual) <= TOLERANCE)))


tally = Tally()


def allocate_batch(program: Program) -> Allocation:
    """Return the allocations of a batch of B programs whose arrays have their full shapes; for policies.

    queue, weight, limit (B, I); reward (B, I, J); capacity (B, J); V, gamma (B,); eligible and duration (B, I, J) or empty.
    An answer that cannot be certified is used nevertheless, and counted.
    """
    batch = solve(program, NO_PRICE, program)
    tally.add(batch)
    return batch


def solve(program: Program, price: Array, given: Program) -> Allocation:
    """Return the answers to a batch, from a cold start or given prices; errors name the arguments as they were `given`."""
    y, q = np.empty(program.reward.shape), np.empty(program.capacity.shape)
    residual, gap = np.empty(len(program.queue)), np.empty(len(program.queue))
    small = math.prod(program.reward.shape[1:]) <= kernels().small
    steps = (kernels().small_batch if small else kernels().batch)(*program, price, y, q, residual, gap)
    if steps < 0:
        explain(given)
    for b in np.flatnonzero(~(residual <= TOLERANCE)).tolist():
        steps += _again(program, b, price, y, q, residual, gap)
    return Allocation(y, q, residual, steps, gap)


def _again(program: Program, b: int, price: Array, y: Array, q: Array, residual: Array, gap: Array) -> int:
    """Solve program b of a batch in other ways, until an answer certifies; return the steps.

    A program that is not finished goes to the kernels for all sizes. Prices that are exact but for rounding are a good
    start: what steps from far away have added to them is gone. Newton steps on all conditions are the last resort.
    """
    one, steps = slice(b, b + 1), 0
    for _ in range(AGAIN):
        start = price[one] if np.isinf(residual[b]) else q[one].copy()
        found = np.empty_like(y[one]), np.empty_like(q[one]), np.empty(1), np.empty(1)
        steps += kernels().batch(*(part[one] for part in program), start, *found)
        if found[2][0] < residual[b]:
            for whole, part in zip((y, q, residual, gap), found, strict=True):
                whole[one] = part
        if residual[b] <= TOLERANCE:
            return steps
    from bilinq.allocation.polish import polish

    polish(program, b, y, q, residual, gap)
    return steps


class Kernels(NamedTuple):
    """The kernels for a program with the five plain arguments only, and for a batch; those for up to `small` pairs first.

    Kernels for small programs leave out what only large ones need, so that they are compiled in a fraction of the time.
    """

    small: int
    small_plain: Callable[[Array, Array, Array, float, float, Array, Array], tuple[int, float, float]]
    plain: Callable[[Array, Array, Array, float, float, Array, Array], tuple[int, float, float]]
    small_batch: Callable[..., int]
    batch: Callable[..., int]


@cache
def kernels() -> Kernels:
    """Return the kernels; loaded when first needed, since they load the compiler, and once, since imports take time."""
    from bilinq.allocation.small import SMALL, solve_small_batch, solve_small_plain
    from bilinq.allocation.solve import solve_batch, solve_plain

    return Kernels(SMALL, solve_small_plain, solve_plain, solve_small_batch, solve_batch)


def explain(given: Program) -> NoReturn:
    """Raise the error that names the argument that the kernel rejected."""
    queue, reward, capacity, V, gamma, weight, limit, eligible, duration = given
    non_negative("queue", queue)
    non_negative("capacity", capacity)
    positive("V", V)
    require("gamma", gamma, lambda x: (x > 1.0) & np.isfinite(x), "above one and finite")
    positive("weight", weight)
    require("limit", limit, lambda x: x >= 0.0, "non-negative")
    require("reward", reward, np.isfinite, "finite")
    below = np.broadcast_to(reward, np.broadcast_shapes(reward.shape, (*gamma.shape, 1, 1)))
    shown = "its own gamma" if gamma.ndim else f"{gamma:g}"
    require("reward", below, lambda x: x < gamma[..., None, None], f"below gamma = {shown}")
    require("gamma - reward", gamma[..., None, None] - reward, np.isfinite, "finite")
    from bilinq.allocation.program import APART

    if duration.size:
        positive("duration", duration)
        counted = np.where(eligible, duration, duration.max(axis=-1, keepdims=True)) if eligible.size else duration
        apart = counted.max(axis=-1) / counted.min(axis=-1)
        require("duration", apart, lambda x: x <= APART, f"at most {APART:g} times the shortest of its row")
    raise BadInput("weight * queue / V must be finite; it overflows")
