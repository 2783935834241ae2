"""How many requests are worked on at a time: as many as are answered soon. Others wait a little, or are refused."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from bilinq.errors import Busy
from bilinq.live.http.routing import Gone
from bilinq.live.logs import Seldom

log = logging.getLogger("bilinq.live.http")

SOON = 0.2  # seconds in which requests that are let in should be answered
AGE = 1.0  # most seconds that a request waits to be let in
LEAST, FIRST, MOST = 2.0, 16.0, 1024.0  # fewest requests at a time, how many at the start, and most
MOST_WAITING, MOST_BYTES = 2000, 64 << 20  # most requests that wait, and most bytes of their bodies


class Waiting:
    """A request that waits to be let in since a time, with the bytes of its body; `gone` tells whether its client left."""

    def __init__(self, since: float, size: int, gone: Callable[[], bool]) -> None:
        self.since, self.size, self.gone = since, size, gone
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Gate:
    """Lets requests in one after the other; those that wait too long are refused, those whose clients have gone dropped.

    More work at a time makes each request slower and none sooner. Without a bound all become so slow that their clients give
    up, and nothing that is done is of use. In overload somebody must be refused, and the client of the oldest request gives
    up first: so when requests wait for long, the newest are let in first. `most` is how many may be inside. It grows while
    requests wait and others are answered soon, and shrinks when they are not.
    """

    def __init__(self) -> None:
        self.most, self.inside, self.refused = FIRST, 0, 0
        self._line: deque[Waiting] = deque()
        self._bytes, self._judged = 0, 0.0
        self._logged = Seldom(log)

    async def enter(self, size: int, gone: Callable[[], bool]) -> float:
        """Wait to be let in and return the time; raise `Busy` if that takes too long, and `Gone` if the client has gone."""
        clock = asyncio.get_running_loop().time
        if self.inside + 1 <= self.most:
            self.inside += 1
        else:
            await self._wait(Waiting(clock(), size, gone))
        return clock()

    async def _wait(self, one: Waiting) -> None:
        self._line.append(one)
        self._bytes += one.size
        if len(self._line) == 1:
            asyncio.get_running_loop().call_later(AGE, self._refuse_old)
        while len(self._line) > MOST_WAITING or self._bytes > MOST_BYTES:
            self._refuse_oldest()
        try:
            await one.turn
        except asyncio.CancelledError:
            if not one.turn.cancelled():  # it was let in just before
                self._let_in(-1)
            raise

    def leave(self, entered: float) -> None:
        """End a request that was let in at a time, and let others in."""
        now = asyncio.get_running_loop().time()
        if now - entered > SOON and entered >= self._judged:  # each that is let in together is slow because of all
            self.most, self._judged = max(0.8 * self.most, LEAST), now
        elif now - entered <= SOON and self._line:
            self.most = min(self.most + 0.1, MOST)
        self._let_in(-1)

    def _let_in(self, change: int) -> None:
        """Change the number of requests inside, and let in those for which there is room."""
        self.inside += change
        long_ago = asyncio.get_running_loop().time() - AGE / 2
        while self._line and self.inside + 1 <= self.most:
            one = self._line.pop() if self._line[0].since < long_ago else self._line.popleft()
            self._bytes -= one.size
            if one.turn.done():
                continue
            if one.gone():
                one.turn.set_exception(Gone())
            else:
                self.inside += 1
                one.turn.set_result(None)

    def _refuse_old(self) -> None:
        """Refuse all that have waited too long, and look again when the next one will have."""
        loop = asyncio.get_running_loop()
        while self._line and self._line[0].since <= loop.time() - AGE:
            self._refuse_oldest()
        if self._line:
            loop.call_at(self._line[0].since + AGE, self._refuse_old)

    def _refuse_oldest(self) -> None:
        one = self._line.popleft()
        self._bytes -= one.size
        if not one.turn.done():
            self.refused += 1
            self._logged.warning("requests are refused: there are more than can be answered", at_a_time=int(self.most))
            one.turn.set_exception(
                Busy("the service gets more requests than it can answer; try again", retry_after=1.0)
            )
