"""An event loop whose clock jumps: where nothing is left to do but wait, the time waited for is now."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Ready = list[tuple[selectors.SelectorKey, int]]


class _Jump(selectors.SelectSelector):
    """A selector that never waits but counts the seconds that it should have."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Ready:
        """Return what is ready, at once."""
        assert timeout is not None, "nothing is left to do and nothing to wait for: everybody waits for somebody else"
        self.now += max(timeout, 0.0)
        return super().select(0.0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop for simulations: hours pass in seconds, in the same order every time."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Return the seconds since the loop was made."""
        return self._jump.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, run on a clock that jumps."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
