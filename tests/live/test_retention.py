"""Jobs are deleted when `retention` has really passed, whatever the wall clock does, also across restarts."""

import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from slotless import run, serve_job, serving

from bilinq.errors import NotFound
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.service.retention import MOST_JUMPS, Counted, Retention
from bilinq.live.wire.messages import NewJob

pytest_plugins = ("databases",)

HOURS = 7200.0


class Clocks:
    """A service's clocks, which a test sets: `pass_` is time that passes, `jump` moves the wall clock only."""

    def __init__(self, service: Service) -> None:
        self.wall, self.steady = time.time(), time.monotonic()
        self.retention = Retention(service.replica, self.wall, self.steady)

    async def pass_(self, seconds: float, jump: float = 0.0) -> None:
        self.wall, self.steady = self.wall + seconds + jump, self.steady + seconds
        await self.retention.delete(self.wall, self.steady)


async def there(service: Service, id: str) -> bool:
    try:
        await service.job(LOCAL, id)
    except NotFound:
        return False
    return True


def test_a_clock_that_jumps_two_hours_ahead_deletes_nothing(database_url: str) -> None:
    """Neither the job nor the key under which it was submitted: the same key would submit it again."""

    async def work() -> None:
        async with serving(database_url, retention=3600.0) as service:
            keyed = (await service.submit(LOCAL, [NewJob("a", key="once")])).jobs[0].id
            await service.cancel(LOCAL, keyed)
            clocks = Clocks(service)
            await clocks.pass_(10.0, jump=HOURS)
            assert await there(service, keyed)
            assert (await service.submit(LOCAL, [NewJob("a", key="once")])).jobs[0].id == keyed
            await clocks.pass_(3580.0)
            assert await there(service, keyed)
            await clocks.pass_(30.0)
            assert not await there(service, keyed)

    run(work())


def test_a_jump_between_two_leaders_deletes_nothing(database_url: str) -> None:
    """Nobody can tell a jump from a pause, so a pause does not count; what passed before it does."""

    async def work() -> None:
        async with serving(database_url, retention=3600.0) as service:
            done = await serve_job(service)
            clocks = Clocks(service)
            await clocks.pass_(1000.0)
        async with serving(database_url, retention=3600.0) as service:
            later = Clocks(service)
            later.wall = clocks.wall + HOURS
            later.retention = Retention(service.replica, later.wall, later.steady)
            await later.pass_(2500.0)
            assert await there(service, done)
            await later.pass_(200.0)
            assert not await there(service, done)

    run(work())


def test_offline_servers_do_not_go_when_the_clock_jumps(sqlite_url: str) -> None:
    async def work() -> None:
        async with serving(sqlite_url, server_retention=3600.0) as service:
            await serve_job(service)
            clocks = Clocks(service)
            await clocks.pass_(10.0, jump=HOURS)
            assert len(await service.servers(LOCAL)) == 1
            await clocks.pass_(3600.0)
            assert not await service.servers(LOCAL)

    run(work())


STEPS = st.lists(
    st.tuples(st.floats(1.0, 500.0), st.just(0.0) | st.floats(-5000.0, 5000.0)), min_size=1, max_size=2 * MOST_JUMPS
)


@given(STEPS, st.floats(0.0, 2000.0))
def test_nothing_goes_early_and_all_goes_in_the_end(steps: list[tuple[float, float]], age: float) -> None:
    """Events between all steps. Small differences of the clocks count as none: at most a second in each step."""
    counted, now, events = Counted(0.0, 1e9), 0.0, [(0.0, 1e9)]
    for seconds, jump in steps:
        now += seconds
        counted = counted.passed(counted.wall + seconds + jump, seconds)
        slack = 1.0 * sum(abs(jump) <= 1.0 for _, jump in steps) + 1e-3
        assert all(now - at > age - slack for at, wall in events if wall < counted.before(age))
        events.append((now, counted.wall))
    assert counted.seconds == now or abs(counted.seconds - now) < 1e-6
    quiet = counted.passed(counted.wall + 10_000.0, 10_000.0)
    assert all(wall < quiet.before(age) or wall > counted.wall for _, wall in events)
    assert quiet.since(age).jumps == ()
    assert all(one.at <= two.at for one, two in pairwise(counted.jumps)) and len(counted.jumps) <= MOST_JUMPS
