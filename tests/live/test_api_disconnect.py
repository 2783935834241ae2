"""Work for a client is cancelled when the client disconnects, and nothing else is."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bilinq.live.http.routing import Gone, Message, while_connected


class Client:
    """A client that disconnects when `gone` is set."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


def run(scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def with_client() -> None:
        await asyncio.wait_for(scenario(Client()), 5.0)

    asyncio.run(with_client())


def test_work_is_cancelled_when_the_client_disconnects() -> None:
    ended = []

    async def work(client: Client) -> None:
        client.gone.set()
        try:
            await asyncio.sleep(60.0)
        finally:
            ended.append(True)

    async def scenario(client: Client) -> None:
        with pytest.raises(Gone):
            await while_connected(client.receive, work(client))
        assert ended == [True]
        await asyncio.sleep(0.01)  # is not cancelled

    run(scenario)


@pytest.mark.parametrize("turns", range(6))
def test_what_follows_the_work_is_not_cancelled_however_late_the_client_disconnects(turns: int) -> None:
    async def work(client: Client) -> str:
        client.gone.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        return "done"

    async def scenario(client: Client) -> None:
        try:
            assert await while_connected(client.receive, work(client)) == "done"
        except Gone:
            assert turns > 1
        for _ in range(10):
            await asyncio.sleep(0)
        current = asyncio.current_task()
        assert current is not None and not current.cancelling()

    run(scenario)


@pytest.mark.parametrize("disconnects", [False, True])
def test_a_cancellation_from_outside_is_kept(disconnects: bool) -> None:
    async def scenario(client: Client) -> None:
        task = asyncio.create_task(while_connected(client.receive, asyncio.sleep(60.0)))
        await asyncio.sleep(0.01)
        if disconnects:
            client.gone.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario)


def test_errors_of_the_work_are_raised() -> None:
    async def work() -> None:
        raise ValueError("mine")

    async def scenario(client: Client) -> None:
        with pytest.raises(ValueError, match="mine"):
            await while_connected(client.receive, work())

    run(scenario)
