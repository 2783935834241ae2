"""How the benchmarks take time: the best of several repeats, so that what else the machine does counts little."""

import time
from collections.abc import Callable


def best_seconds(
    call: Callable[[], object], budget: float = 0.5, repeats: int = 3, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the seconds of one call: the least mean over repeats that together take about `budget` seconds.

    With `clock=time.process_time` they are those of a core, whatever else the machine does.
    """
    began = clock()
    call()
    once = clock() - began
    number = max(1, int(budget / repeats / max(once, 1e-7)))
    best = float("inf")
    for _ in range(repeats):
        began = clock()
        for _ in range(number):
            call()
        best = min(best, (clock() - began) / number)
    return best
