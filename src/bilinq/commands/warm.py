"""Compile the kernels ahead of first use: `python -m bilinq.commands.warm`. Numba keeps the result next to the sources."""

import time

import numpy as np

from bilinq import Greedy, Problem, Sabr, UgdaOl, distributed, simulate
from bilinq.allocation import allocate


def main() -> None:
    """Call every kernel once, on the array types that the package passes."""
    began = time.perf_counter()
    problem = Problem.synthetic(seed=1)
    allocate([9.0, 9.0], [[0.2, 0.9], [0.5, 0.4]], [1.0, 1.0], V=1.0)
    allocate(np.full(2, 9.0), np.array([[0.2, 0.9], [0.5, 0.4]]), np.ones(2), 1.0)
    for policy in (Sabr(), Sabr(noise="estimate"), UgdaOl(), Greedy()):
        simulate(problem, policy, slots=3)
    for delay in ((0, 0), (1, 3)):
        system = distributed.System.synthetic(delay=delay)
        distributed.Network(system, 0.01, rule="delayed").advance(2)
        distributed.integrate(system, 0.01, until=1.0)
    print(f"kernels ready after {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
