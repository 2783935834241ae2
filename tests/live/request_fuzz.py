"""Mutated requests to the service: byte streams of several requests, and bodies and queries of every route.

    PYTHONPATH=tests python tests/live/request_fuzz.py --streams 100000 --bodies 10000 --seed 0

Nothing may be answered by 500, nothing may be logged as an error, and each case must be over within a second. A stream that
is only unusual (chunks, extensions, trailers, pieces, pipelining) must be answered like a plain one. Whatever was sent, each
response belongs to a request in its order, and the next client is served. A short version runs with the tests.
"""

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from exchanges import EXAMPLES, Example, ask, filled, make_things, request_bytes, target
from memory_client import Answer, MemoryService, Wrong, memory_service

from mutations import TEXTS, encode, hostile, mutate_bytes, mutate_value, split, to_json

CASES = 1000  # cases of one service; then the next one starts, since some cases limit what later ones can do
RENEW = 50  # cases after which new jobs, servers and leases are made
WITH_BODY = [name for name, one in EXAMPLES.items() if one.body is not None]
IN_STREAMS = ("get_me", "get_health", "submit", "get_job", "get_events", "work", "extend", "list_jobs", "get_openapi")


class Case(NamedTuple):
    """What is sent, in pieces, and the ids of its requests; `legal`: each must be answered as a plain request would be."""

    pieces: list[bytes]
    ids: list[str]
    methods: list[str]
    legal: bool


def in_chunks(rng: random.Random, body: bytes) -> bytes:
    """Return a body in chunks, with extensions and trailers."""
    parts = []
    for piece in split(rng, body):
        extension = rng.choice(["", "", ";a=b", ';name="x;y"', ";" + "e" * 200])
        parts.append(f"{len(piece):{rng.choice(['x', 'X', '04x'])}}{extension}\r\n".encode() + piece + b"\r\n")
    trailers = rng.choice(["", "", "X-Late: 1\r\n", "Authorization: x\r\nHost: b\r\n", "X-Request-Id: late\r\n"])
    return b"".join(parts) + f"0\r\n{trailers}\r\n".encode()


def unusual(rng: random.Random, method: str, url: str, key: str, id: str, body: bytes | None) -> bytes:
    """Return a request that HTTP allows, though few clients would send it."""
    plain = request_bytes(method, url, key, id, body)
    head, _, rest = plain.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    if body is not None and rng.random() < 0.5:
        lines = [line for line in lines if not line.startswith(b"Content-Length")] + [b"Transfer-Encoding: chunked"]
        rest = in_chunks(rng, body)
    if rng.random() < 0.3:
        lines = [name.swapcase() + b":" + rng.choice([b"", b"  ", b"\t"]) + value.strip() + rng.choice([b"", b" "])
                 for name, _, value in (line.partition(b":") for line in lines)]  # fmt: skip
    if rng.random() < 0.3:
        lines += [b"X-%d: %s" % (k, b"v" * rng.choice([0, 1, 1000])) for k in range(rng.choice([1, 5, 50]))]
    rng.shuffle(lines)
    return rng.choice([b"", b"", b"\r\n"]) + b"\r\n".join([first, *lines, b"", b""]) + rest


BAD_HEADERS = (
    b"Content-Length: 0", b"Content-Length: 7", b"Content-Length: -1", b"Content-Length: 1, 1", b"Content-Length: 0x5",
    b"Content-Length: 99999999999999999999999", b"Content-Length: +3", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding : chunked",
    b"Connection: close", b"Connection: Upgrade\r\nUpgrade: h2c", b"Connection: keep-alive, close", b"Expect: 100-continue",
    b"Expect: nothing", b"Authorization: Bearer x", b"Authorization: Basic eA==", b"X-Request-Id: \xff", b" folded: x",
    b"Content-Type: text/plain", b"Content-Encoding: gzip", b"Host: b", b"A" * 70_000 + b": b", b"\x00: x", b"x: \x00",
    b"Last-Event-ID: e-9", b"Last-Event-ID: \xff\xfe", b"traceparent: 00-00-00-00", b"HTTP2-Settings: x",
)  # fmt: skip


def corrupt(rng: random.Random, data: bytes) -> bytes:
    """Return a stream with a header that is wrong or repeated, or with mutated bytes."""
    if rng.random() < 0.5:
        return mutate_bytes(rng, data)
    lines = data.split(b"\r\n")
    line = rng.choice([*BAD_HEADERS, rng.choice(lines)])
    lines.insert(rng.randrange(len(lines) + 1), line)
    return b"\r\n".join(lines)


def draw_stream(rng: random.Random, key: str, things: dict[str, Any]) -> Case:
    """Return one to four requests on one connection, two times in three corrupted."""
    requests, ids, methods = [], [], []
    for _ in range(rng.choice([1, 2, 2, 3, 4])):
        example = EXAMPLES[rng.choice(IN_STREAMS)]
        method = "HEAD" if example.method == "GET" and rng.random() < 0.05 else example.method
        body = None if example.body is None else encode(to_json(random.Random(0), filled(example.body, things)))
        ids.append(f"r{rng.getrandbits(40):x}")
        methods.append(method)
        requests.append(unusual(rng, method, target(example, things), key, ids[-1], body))
    data, legal = b"".join(requests), rng.random() < 1 / 3
    return Case(split(rng, data if legal else corrupt(rng, data)), ids, methods, legal)


def hostile_text(rng: random.Random) -> str:
    """Return a text for a path or a query, sometimes with characters that must not be there."""
    text = str(hostile(rng)) if rng.random() < 0.3 else rng.choice([one for one in TEXTS if isinstance(one, str)])
    raw = encode(text)[: rng.choice([50, 500, 5000])]
    return raw.decode("latin-1") if rng.random() < 0.1 and raw.isalnum() else quote(raw)


def draw_body(rng: random.Random, key: str, things: dict[str, Any]) -> Case:
    """Return a request whose body, query or path is mutated."""
    example = EXAMPLES[rng.choice(WITH_BODY if rng.random() < 0.6 else list(EXAMPLES))]
    names, query, body = dict(things), dict(example.query), None
    if example.body is not None:
        value = short_waits(mutate_value(rng, filled(example.body, things)))
        body = encode(to_json(rng, value))
        body = mutate_bytes(rng, body) if rng.random() < 0.15 else body
    where = rng.random()
    if "{" in example.path and (where < 0.2 or body is None):
        names = {name: hostile_text(rng) or "x" for name in names}
    url = target(Example(example.method, example.path, query), names)
    if example.query and where > 0.2:
        changed = rng.choice(list(query))
        pairs = [f"{name}={hostile_text(rng) if name == changed else value}" for name, value in query.items()]
        url = example.path.format_map(names) + "?" + "&".join(pairs)
    id = f"r{rng.getrandbits(40):x}"
    return Case([request_bytes(example.method, url, key, id, body)], [id], [example.method], legal=False)


def short_waits(value: Any) -> Any:
    """Return a body that asks nobody to wait for longer than a hundredth of a second, which would be no hang."""
    if isinstance(value, dict) and type(value.get("wait")) in (int, float) and 0 < value["wait"] <= 60:
        value["wait"] = 0.01
    return value


def check(case: Case, answers: list[Answer]) -> None:
    """Raise `Wrong` unless each response belongs to a request, in order, and none is a 500."""
    told = [answer.headers.get("x-request-id", "") for answer in answers]
    sent = iter(re.findall("|".join(case.ids), b"".join(case.pieces).decode("latin-1")))  # some are there twice
    if not all(id in sent for id in told if id in case.ids):
        raise Wrong(f"responses are not in the order of their requests: {told}")
    if any(answer.status >= 500 for answer in answers):
        raise Wrong(f"statuses {[answer.status for answer in answers]}")
    if not case.legal:
        return
    if told != case.ids or any(answer.status not in (200, 201, 404, 409, 429) for answer in answers):
        raise Wrong(f"statuses {[answer.status for answer in answers]} to {case.ids}, {told} are answered")
    for answer, method in zip(answers, case.methods, strict=True):
        if int(answer.headers.get("content-length", len(answer.body))) != len(answer.body) and method != "HEAD":
            raise Wrong("a response without its body")


async def carry_out(service: MemoryService, case: Case, limit: float) -> Counter[str]:
    """Send a case, check what comes back, and that the next client is served; return the statuses."""
    client = service.connect(endless=not case.legal)  # a mutated request may ask for a stream without end
    try:
        await client.send(case.pieces, limit)
        await client.settle(limit)
    finally:
        await client.leave(limit)
    answers = client.answers()
    check(case, answers)
    await ask(service, "GET", "/healthz")
    if service.complaints:
        raise Wrong(f"logged: {service.complaints.pop()[-1500:]}")
    return Counter(str(answer.status) for answer in answers) or Counter(["no response"])


Draw = Callable[[random.Random, str, dict[str, Any]], Case]


async def fuzz(draw: Draw, cases: int, seed: int, limit: float) -> Counter[str]:
    """Carry out cases, each from its own seed, and return counts: statuses, and under `wrong` what must not be."""
    found: Counter[str] = Counter()
    for start in range(0, cases, CASES):
        with tempfile.TemporaryDirectory() as folder:
            async with memory_service(Path(folder)) as service:
                for number in range(start, min(start + CASES, cases)):
                    rng = random.Random(f"{seed} {number}")
                    if number % RENEW == 0:
                        things = await _renewed(service, rng, found)
                    case = draw(rng, service.key, things)
                    await _counted(carry_out(service, case, limit), number, case, limit, found)
        print(f"{draw.__name__}: {min(start + CASES, cases)} cases, {dict(found)}", flush=True)
    return found


async def _renewed(service: MemoryService, rng: random.Random, found: Counter[str]) -> dict[str, Any]:
    """Return new jobs, servers and leases, or names of nothing if earlier cases have set limits that prevent it."""
    try:
        return await make_things(service, rng)
    except Wrong:
        found["without things"] += 1
        return {"server": "s1", "spare": "s2", "job": "j1", "lease": "l1", "fence": 1, "prefix": "x"}


async def _counted(work: Awaitable[Counter[str]], number: int, case: Case, limit: float, found: Counter[str]) -> None:
    began = time.perf_counter()
    try:
        found.update(await work)
        took = time.perf_counter() - began
        if took > limit:
            raise Wrong(f"it took {took:.2f} s")
    except Exception as error:
        found["wrong"] += 1
        if found["wrong"] <= 10:
            print(f"case {number}: {type(error).__name__}: {error}\n  {b''.join(case.pieces)[:1500]!r}", flush=True)
    found["slowest, ms"] = max(found["slowest, ms"], round(1000 * (time.perf_counter() - began)))


def run(streams: int, bodies: int, seed: int, limit: float = 1.0) -> Counter[str]:
    """Fuzz streams and bodies; return the counts of both together."""
    found = asyncio.run(fuzz(draw_stream, streams, seed, limit))
    more = asyncio.run(fuzz(draw_body, bodies, seed, limit))
    slowest = max(found.pop("slowest, ms", 0), more.pop("slowest, ms", 0))
    return found + more + Counter({"slowest, ms": slowest})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--bodies", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    result = run(chosen.streams, chosen.bodies, chosen.seed)
    print(dict(result))
    sys.exit(1 if result["wrong"] else 0)
