"""How the benchmarks take time: the best of several repeats, so that what else the machine does counts little."""

import time
from collections.abc import Callable, Mapping


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


def side_by_side(calls: Mapping[str, Callable[[], object]], turns: int = 10, budget: float = 0.05) -> dict[str, float]:
    """Return the least seconds of each call over `turns` in which all take their turn, so that all see the same machine."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(turns):
        for name, call in calls.items():
            best[name] = min(best[name], best_seconds(call, budget, repeats=1))
    return best
