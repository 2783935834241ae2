"""HTTP as it goes over the wire: requests in every legal form, answers in every form, and what is not HTTP at all."""

import asyncio
import gc
import random
from typing import Any

import pytest
from connections import answer, close, echo, read_answer, stream, whole
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from bilinq.live.http.routing import App, Receive, Scope, Send

pytest_plugins = ["connections"]


def test_requests_that_come_together_are_answered_in_order(talks: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ask = [
            b"POST /%d?q=%d HTTP/1.1\r\nHost: a\r\nX-A: %d\r\nContent-Length: 2\r\n\r\nb%d" % (k, k, k, k)
            for k in range(5)
        ]
        writer.write(b"".join(ask))
        for k in range(5):
            head, body = await read_answer(reader)
            assert body == b"POST /%d q=%d b%d" % (k, k, k) and b"x-a: %d\r\n" % k in head
            assert head.startswith(b"HTTP/1.1 200 OK\r\ndate: ") and b"connection" not in head

    talks(echo, talk)


@pytest.mark.parametrize("seed", range(6))
def test_no_request_is_lost_however_many_come_at_once(talks: Any, seed: int) -> None:
    """Sizes are such that requests begin and end around the 64 KiB that are often read at once."""
    draw = random.Random(seed)
    paths = [f"/{draw.choice(('read', 'skip', 'slow'))}/{k}".encode() for k in range(12)]

    async def some(scope: Scope, receive: Receive, send: Send) -> None:
        if "read" in scope["path"]:
            await whole(receive)
        if "slow" in scope["path"]:
            await asyncio.sleep(0.001)
        await answer(send, scope["path"].encode())

    def request(path: bytes) -> bytes:
        size, head = draw.choice((0, 10, 30_000, 65_536, 65_537, 200_000)), draw.choice((0, 0, 30_000, 60_000))
        start = b"POST %b HTTP/1.1\r\nHost: a\r\nX-Long: %b\r\n" % (path, b"x" * head)
        if draw.random() < 0.5 or not size:
            return start + b"Content-Length: %d\r\n\r\n" % size + bytes(size)
        return start + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, bytes(size))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = b"".join(map(request, paths))
        writer.write(sent[: len(sent) // 2])
        await asyncio.sleep(0.002)
        writer.write(sent[len(sent) // 2 :])
        assert [(await read_answer(reader))[1] for _ in paths] == paths

    talks(some, talk)


def requests_in_memory(client: Any) -> int:
    """Return how many parsed requests of a connection are in memory; other tests may have left some."""
    return sum(isinstance(one, RequestResponseCycle) and one.scope["client"] == client for one in gc.get_objects())


def test_requests_that_wait_for_others_take_little_memory(talks: Any) -> None:
    """Most of what is read at once stays unparsed: a small request takes a hundred times its bytes."""
    made: list[int] = []

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        made.append(requests_in_memory(scope["client"]) if len(made) == 10 else 0)
        await answer(send)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 8000)
        for _ in range(20):
            await read_answer(reader)
        assert 0 < made[10] < 100
        writer.transport.abort()

    talks(slow, talk)


def test_a_request_that_comes_byte_by_byte(talks: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in b"POST /a%20b HTTP/1.1\r\nHost: a\r\nX-Long: 12\r\nContent-Length: 3\r\n\r\nxyz":
            writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        head, body = await read_answer(reader)
        assert body == b"POST /a b  xyz" and b"x-long: 12\r\n" in head

    talks(echo, talk)


def test_spaces_around_the_value_of_a_header_are_not_part_of_it(talks: Any) -> None:
    """RFC 9110, section 5.5."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX-A: \t one two \t \r\nX-B: \r\n\r\n")
        head, _ = await read_answer(reader)
        assert b"\r\nx-a: one two\r\n" in head and b"\r\nx-b: \r\n" in head

    talks(echo, talk)


def test_a_body_in_chunks_and_what_follows_it(talks: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX-Late: 1\r\n\r\n"
        )
        head, body = await read_answer(reader)
        assert body == b"POST /  abcde" and b"x-late" not in head
        writer.write(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await read_answer(reader))[1] == b"GET /next  "

    talks(echo, talk)


@pytest.mark.parametrize("asks", [b"HTTP/1.1\r\nHost: a\r\nConnection: close\r\n", b"HTTP/1.0\r\n"])
def test_the_last_request_ends_the_connection(talks: Any, asks: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / " + asks + b"\r\nGET /ignored HTTP/1.1\r\nHost: a\r\n\r\n")
        told = await reader.read()
        assert b"connection: close\r\n" in told and told.endswith(b"GET /  ") and told.count(b"HTTP/1.1 200") == 1

    talks(echo, talk)


def test_an_upgrade_is_answered_as_if_it_had_not_been_asked_for(talks: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /up HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert (await reader.read()).endswith(b"GET /up  ")

    talks(echo, talk)


def test_who_expects_to_be_told_to_continue_is_told(talks: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert (await read_answer(reader))[1] == b"POST /  ok"

    talks(echo, talk)


def test_an_answer_without_a_body_says_how_long_it_would_be(talks: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HEAD /h HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        told = await reader.read()
        assert (
            b"content-length: 9\r\n" in told and told.count(b"HTTP/1.1 200") == 2 and told.endswith(b"\r\n\r\nGET /  ")
        )

    talks(echo, talk)


@pytest.mark.parametrize(("version", "body"), [(b"1.1", b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"), (b"1.0", b"onetwo")])
def test_a_stream_has_chunks_or_ends_with_the_connection(talks: Any, version: bytes, body: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/" + version + b"\r\nHost: a\r\nConnection: close\r\n\r\n")
        head, _, told = (await reader.read()).partition(b"\r\n\r\n")
        assert told == body and (b"chunked" in head) == (version == b"1.1")

    talks(stream, talk)


@pytest.mark.parametrize(
    "wrong",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_refused(talks: Any, wrong: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wrong)
        told = await reader.read()
        assert told.startswith(b"HTTP/1.1 400 Bad Request\r\n") and told.endswith(b"Invalid HTTP request received.")

    talks(echo, talk)


@pytest.mark.parametrize(
    ("version", "hosts", "fine"),
    [("1.1", 0, False), ("1.1", 1, True), ("1.1", 2, False), ("1.0", 0, True), ("1.0", 2, False)],
)
def test_a_request_has_one_host(talks: Any, version: str, hosts: int, fine: bool) -> None:
    """HTTP/1.0 may have none. With two, a proxy and the service could each take another one."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = f"POST /it HTTP/{version}\r\n" + "Host: a\r\n" * hosts + "Connection: close\r\nContent-Length: 0\r\n\r\n"
        writer.write(head.encode())
        told = await reader.read()
        if fine:
            assert told.startswith(b"HTTP/1.1 200 ") and asked == ["/it"]
        else:
            assert told.startswith(b"HTTP/1.1 400 ") and asked == []
            assert told.endswith(f"A request must have one Host header; got {hosts}.".encode())

    async def notes(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        await answer(send)

    asked: list[str] = []
    talks(notes, talk)


def test_no_more_of_a_body_is_read_than_somebody_asks_for(talks: Any) -> None:
    size, go = 8 << 20, asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await answer(send, b"%d" % len(await whole(receive)))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=HIGH_WATER_LIMIT)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.3)
        go.set()
        assert (await read_answer(reader))[1] == b"%d" % size

    talks(slow, talk)


def test_no_more_requests_are_read_while_others_of_the_client_wait(talks: Any) -> None:
    answered = [0]

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        assert await whole(receive) == b""
        await asyncio.sleep(0.005)
        await answer(send)
        answered[0] += 1

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=HIGH_WATER_LIMIT)
        writer.write((b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n") * 1600)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 1.0)
        assert answered[0] > 5
        writer.transport.abort()

    talks(slow, talk)


def test_no_more_is_sent_than_the_client_takes(talks: Any) -> None:
    sent = [0]

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
            sent[0] += 1
        await send({"type": "http.response.body"})

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        await asyncio.sleep(0.3)
        assert 0 < sent[0] < 900
        assert len(await reader.read()) > 1000 << 16

    talks(endless, talk)


async def raises(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError("secret")


async def says_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await whole(receive)


async def says_no_status(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.body", "body": b"x"})


@pytest.mark.parametrize(
    ("app", "logged"),
    [
        (raises, "ZeroDivisionError: secret"),
        (says_nothing, "returned without starting response"),
        (says_no_status, "Expected ASGI message 'http.response.start'"),
    ],
)
def test_an_application_that_fails_is_told_of_but_not_how(
    talks: Any, app: App, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        told = await reader.read()
        assert told.startswith(b"HTTP/1.1 500 ") and told.endswith(b"\r\n\r\nInternal Server Error")

    talks(app, talk)
    assert logged in caplog.text


async def says_too_much(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"abc"})


async def says_too_little(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"a"})


async def stops_in_the_middle(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    raise ZeroDivisionError


async def begins_twice(scope: Scope, receive: Receive, send: Send) -> None:
    for _ in range(2):
        await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.parametrize("app", [says_too_much, says_too_little, stops_in_the_middle, begins_twice])
def test_an_answer_that_goes_wrong_is_cut_off(talks: Any, app: App) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert not (await reader.read()).endswith(b"0\r\n\r\n")

    talks(app, talk)


def test_an_answer_before_the_body_is_there_leaves_the_connection_usable(talks: Any) -> None:
    async def hasty(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, scope["path"].encode())

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12")
        assert (await read_answer(reader))[1] == b"/a"
        writer.write(b"345GET /b HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await read_answer(reader))[1] == b"/b"

    talks(hasty, talk)


def test_what_follows_a_request_never_mixes_with_its_response(talks: Any) -> None:
    """Neither a request whose response is due nor one whose response is being sent gets the refusal of the next one."""
    go = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await go.wait()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        for path, begins in ((b"/begun", b"4\r\npart\r\n"), (b"/due", b"")):
            other, asks = await asyncio.open_connection("127.0.0.1", port)
            asks.write(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.sleep(0.05)
            asks.write(b"nonsense\r\n\r\n")
            assert (await other.read()).partition(b"\r\n\r\n")[2] == begins
            await close(asks)
        go.set()

    talks(slow, talk)
