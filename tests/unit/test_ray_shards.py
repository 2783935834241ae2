"""The parts of shards on Ray, without Ray: rates, quotes, paces, the monitor, and the certificate that stops a run."""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bilinq.arrays import Array
from bilinq.commands import app as cli
from bilinq.distributed import Barrier, Bounded, Own, Penalty, Power, System, gap_bound, iterate, start_rates
from bilinq.distributed.kernels import advance_alike
from bilinq.distributed.on_ray import joined, run, solve
from bilinq.distributed.on_ray.monitor import Monitor, ShardName
from bilinq.distributed.on_ray.shards import Host, Pace, Report, ServerShard, ShardRates, ShardRows, stiffness_bound
from bilinq.distributed.rounds import distance
from bilinq.errors import BadInput, BilinqError, Unreachable

STEEP = Own(price=lambda z, n: np.expm1(3 * z / n), slope=lambda z, n: 3 / n * np.exp(3 * z / n))
PENALTIES = [Power(2.0), Power([1.0, 8.0, 3.0, 0.5]), Bounded(2.0, 2.0), Barrier(), STEEP]


class Exchange:
    """Job shards and server shards of one system, with messages sent by hand."""

    def __init__(self, system: System, jobs: int, servers: int = 2) -> None:
        rows, columns = system.shape
        self.system, start = system, start_rates(system)
        self.rows = [slice(rows * k // jobs, rows * (k + 1) // jobs) for k in range(jobs)]
        self.columns = [slice(columns * k // servers, columns * (k + 1) // servers) for k in range(servers)]
        n, penalty = system.capacity, system.penalty
        self.blocks = [
            ShardRates(
                ShardRows(
                    a=system.demand[r], c=system.cost[r], n=n, start=start[r], penalty=penalty, spare=0.1, shards=jobs
                )
            )
            for r in self.rows
        ]
        self.servers = [ServerShard(c, n, penalty, jobs) for c in self.columns]
        for k in range(jobs):
            for m in range(servers):
                self.servers[m].quote(k, self.blocks[k].sums[self.columns[m]])

    @property
    def rates(self) -> Array:
        return np.concatenate([block.rates for block in self.blocks])

    def together(self, iterations: int, damping: float = 1.0) -> None:
        """Let all shards ask, receive answers, and then iterate."""
        for _ in range(2):  # the first answers do not know what was asked later
            for k, block in enumerate(self.blocks):
                for m, columns in enumerate(self.columns):
                    self.send(block, k, m, block.sums[columns], damping)
        for block in self.blocks:
            block.iterate(iterations)

    def send(self, block: ShardRates, k: int, m: int, sent: Array, damping: float) -> None:
        quote = self.servers[m].quote(k, sent)
        assert quote is not None
        block.receive(self.columns[m], sent, quote, damping)

    def apart(self, rng: np.random.Generator, iterations: int, damping: float) -> Iterator[Array]:
        """Let one pair of shards after the other, at random, receive an answer that is a round trip old; yield the rates."""
        edges = [(k, m) for k in range(len(self.blocks)) for m in range(len(self.columns))]
        sent = {edge: self.blocks[edge[0]].sums[self.columns[edge[1]]] for edge in edges}
        answer = {(k, m): self.servers[m].quote(k, sent[k, m]) for k, m in edges}
        while True:
            for k, m in rng.permutation(edges).tolist():
                block, quote = self.blocks[k], answer[k, m]
                assert quote is not None
                block.receive(self.columns[m], sent[k, m], quote, damping)
                block.iterate(iterations)
                sent[k, m] = block.sums[self.columns[m]]
                answer[k, m] = self.servers[m].quote(k, sent[k, m])
            yield self.rates


@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
def test_the_bound_is_above_the_gap_and_zero_at_the_optimum(penalty: Penalty) -> None:
    system = System.synthetic(7, 4, penalty=penalty, delay=(0, 0), seed=3)
    assert 0.0 <= gap_bound(system, system.fixed_point()) < 1e-7
    rng = np.random.default_rng(1)
    best = float(system.objective(system.fixed_point()))
    for size in (0.5, 0.1, 0.01):
        y = system.fixed_point() * rng.uniform(1.0 - size, 1.0, system.shape) + 0.01 * size
        gap = (best - float(system.objective(y))) / float(system.demand.sum())
        assert 0.0 < gap <= float(gap_bound(system, y)) < 30.0 * size


def test_the_bound_takes_batches_and_classes_without_jobs() -> None:
    system = System([[3, 1], [0, 2]], [[0.2, 0.9], [0.5, 0.4]], [[1, 1], [1, 0]], 10.0)
    assert (gap_bound(system, system.fixed_point()) < 1e-9).all()
    nothing = np.zeros((2, 2, 2))
    nothing[0] = 0.1
    assert gap_bound(system, nothing)[1] == np.inf and np.isfinite(gap_bound(system, nothing)[0])
    with pytest.raises(BadInput, match="expected must have shape"):
        gap_bound(system, np.zeros((3, 2)))


@pytest.mark.parametrize("iterations", [1, 20, 300])
@pytest.mark.parametrize("penalty", PENALTIES, ids=repr)
def test_moves_at_the_same_time_never_lower_the_objective(penalty: Penalty, iterations: int) -> None:
    """However long all shards iterate on what they expect of each other, Eq. (46), together they gain."""
    system = System.synthetic(24, 4, penalty=penalty, delay=(0, 0), seed=5)
    exchange = Exchange(system, jobs=6)
    values = [float(system.objective(exchange.rates))]
    for _ in range(15):
        exchange.together(iterations)
        values.append(float(system.objective(exchange.rates)))
    assert (np.diff(values) > -1e-9).all()
    assert values[-1] - values[0] > 0.3 * (float(system.objective(system.fixed_point())) - values[0])


@pytest.mark.parametrize("penalty", PENALTIES[:2], ids=repr)
def test_late_answers_in_any_order_lead_to_the_same_allocation(penalty: Penalty) -> None:
    system = System.synthetic(12, 4, penalty=penalty, delay=(0, 0), seed=2)
    track = Exchange(system, jobs=3).apart(np.random.default_rng(3), iterations=20, damping=0.9)
    found = next(y for k, y in enumerate(track) if gap_bound(system, y) < 1e-6 or k > 2000)
    assert float(distance(system, found)) < 3e-3


def test_shards_that_expect_nothing_of_each_other_oscillate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of Eq. (46) are needed: six shards that count a move once, as if alone, do not settle."""
    system = System.synthetic(60, 4, penalty=Power(8.0), delay=(0, 0), seed=2)
    gaps = {}
    for alone in (False, True):
        if alone:
            monkeypatch.setattr(ShardRates, "_weight", lambda self: np.ones(4))
        track = Exchange(system, jobs=6).apart(np.random.default_rng(3), iterations=20, damping=0.9)
        gaps[alone] = [float(gap_bound(system, next(track))) for _ in range(60)][-10:]
    assert max(gaps[False]) < 0.01
    assert max(gaps[True]) > 0.1


def test_shards_report_the_bound() -> None:
    """With quotes of the present rates the parts of the shards add up to the certificate."""
    exchange = Exchange(System.synthetic(9, 4, delay=(0, 0)), jobs=3)
    assert exchange.blocks[0].gap() == np.inf
    for _ in range(5):
        exchange.together(20)
    exchange.together(0)
    total = sum(block.gap() for block in exchange.blocks) / float(exchange.system.demand.sum())
    assert total == pytest.approx(float(gap_bound(exchange.system, exchange.rates)), rel=1e-9)


def test_a_closed_server_shard_leaves_the_problem() -> None:
    system = System.synthetic(9, 4, delay=(0, 0))
    exchange = Exchange(system, jobs=2)
    exchange.together(20)
    for block in exchange.blocks:
        block.close(exchange.columns[1])
    rest = System(system.queue, system.reward, [*system.capacity[:2], 0, 0], system.V)
    for _ in range(600):
        exchange.together(20)
    assert (exchange.rates[:, 2:] == 0.0).all()
    assert float(distance(rest, exchange.rates)) < 1e-3


def test_a_replaced_job_shard_resumes_with_the_sums_of_the_server_shards() -> None:
    exchange = Exchange(System.synthetic(9, 4, delay=(0, 0)), jobs=2)
    for _ in range(5):
        exchange.together(20)
    asked = [server.recall(0) for server in exchange.servers]
    fresh = Exchange(exchange.system, jobs=2).blocks[0]
    for columns, sums in zip(exchange.columns, asked, strict=True):
        assert sums is not None
        assert not np.allclose(fresh.sums[columns], sums)
        fresh.resume(columns, sums)
        np.testing.assert_allclose(fresh.sums[columns], sums)


def test_a_server_shard_answers_when_all_present_have_asked() -> None:
    server = ServerShard(slice(1, 3), np.array([1.0, 2.0, 4.0]), Power(2.0), shards=3)
    assert server.recall(0) is None and server.quote(0, np.array([1.0, 1.0])) is None
    assert server.quote(2, np.array([1.0, 3.0])) is None
    report = server.report(gone=[1])
    assert report.bilinq == version("bilinq")
    quote = server.quote(0, np.array([0.0, 1.0]))
    assert quote is not None
    assert (quote.load.tolist(), quote.price.tolist()) == ([1.0, 4.0], [0.25, 1.0])
    server.report(gone=[1, 2])
    quote = server.quote(0, np.array([0.0, 1.0]))
    assert quote is not None and quote.load.tolist() == [0.0, 1.0]


class Unavailable(Exception):
    """Stands in for the error that Ray raises when an actor is unavailable."""


class FakeRay:
    """Actors whose answers are at hand: `host.begin` and `host.ask` return or raise what the queue of the host has next."""

    exceptions = SimpleNamespace(
        RayActorError=Unavailable, ActorDiedError=ZeroDivisionError, RayTaskError=KeyError, GetTimeoutError=TimeoutError
    )

    def __init__(self, *answers: object) -> None:
        self.answers, self.calls = list(answers), list[str]()
        self.begin, self.ask = (SimpleNamespace(remote=partial(self._call, name)) for name in ("begin", "ask"))

    def _call(self, name: str, *_: object) -> str:
        self.calls.append(name)
        return f"call {len(self.calls)}"

    def wait(self, calls: list[str], **_: object) -> tuple[list[str], list[str]]:
        return calls, []

    def get(self, call: str) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_shard_is_made_again_only_where_the_actor_is_empty() -> None:
    """An actor that was briefly unavailable still has its shard; one that Ray created again returns that it has none."""
    first, second = Report(7, version("bilinq")), Report(8, version("bilinq"))
    fake, name = FakeRay(first, Unavailable(), first, None, second), ShardName("server", 0)
    monitor = Monitor(fake, {name: fake}, {name: ()}, patience=60.0)
    monitor.start()
    for _ in range(4):
        monitor.poll()
    assert fake.calls == ["begin", "ask", "ask", "ask", "begin"]
    assert monitor.restarts == {"server shard 0": 1} and monitor.gone == frozenset()


def test_other_versions_and_silence_are_noticed() -> None:
    name = ShardName("server", 0)
    fake = FakeRay(Report(7, "0.0.1"))
    with pytest.raises(
        BilinqError, match=f"server shard 0 runs bilinq 0.0.1; install {version('bilinq')} on every node"
    ):
        Monitor(fake, {name: fake}, {name: ()}, patience=60.0).start()
    fake = FakeRay(Report(7, version("bilinq")), *(Unavailable() for _ in range(9)))
    monitor = Monitor(fake, {name: fake}, {name: ()}, patience=0.15)
    monitor.start()
    for _ in range(4):
        monitor.poll()
    assert monitor.gone == {name} and monitor.present("server") == []


def test_a_host_creates_its_shard_once() -> None:
    host, values = Host(), (ServerShard, slice(0, 1), np.ones(1), Power(2.0), 1)

    async def calls() -> None:
        assert await host.ask("recall", 0) is None
        await host.begin([], *values)
        await host.ask("quote", 0, np.array([0.5]))
        await host.begin([], *values)
        assert (await host.ask("recall", 0)).tolist() == [0.5]

    asyncio.run(calls())


@pytest.mark.parametrize(("trip", "allowed"), [(0.001, 1.0), (1.0, 0.9), (2.0, 1.8 * np.sin(np.pi / 10))])
def test_round_trips_set_the_damping(monkeypatch: pytest.MonkeyPatch, trip: float, allowed: float) -> None:
    """Eq. (40) at 0.9 of what it allows, with an answer every second: 2 sin(pi / 6) = 1 after one, and never above 1."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    pace = Pace(0.9)
    assert np.isnan(pace.round_trip)
    for _ in range(5):
        now[0] += 1.0
        pace.record(now[0] - trip)
    assert pace.round_trip == pytest.approx(trip)
    assert pace.damping == pytest.approx(allowed, rel=1e-2)


def test_stiffness_of_an_unknown_penalty_is_evaluated() -> None:
    """For z^2 the bound is 3, reached where the price is far above the cost; up to z = 2 n it is 1 + 2 * 4 / (4 + c)."""
    c, n = np.full((2, 2), 0.1), np.array([1.0, 3.0])
    own = Own(price=lambda z, n: (z / n) ** 2, slope=lambda z, n: 2 * z / n**2)
    np.testing.assert_allclose(stiffness_bound(Power(2.0), c, n, 0.1), 3.0)
    np.testing.assert_allclose(stiffness_bound(own, c, n, 0.1), 1.0 + 8.0 / 4.1)


def test_ray_is_needed_only_by_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    message = "bilinq[ray] is not installed; run: pip install 'bilinq[ray]'"
    with pytest.raises(BilinqError) as caught:
        solve(System.synthetic())
    assert str(caught.value).startswith(message)
    result = CliRunner().invoke(cli.app, ["distributed", "--engine", "ray"])
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith(f"error: {message}") and result.stderr.count("\n") == 1


def test_shards_find_their_kernel_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they start, and for the read-only arrays that Ray gives them too; their messages reach no user."""
    compiled: list[ShardRates] = []

    def remote(**options: object) -> None:
        raise BilinqError(f"{len(compiled)} before the first actor")

    monkeypatch.setattr(run, "joined", lambda address: nullcontext(SimpleNamespace(remote=remote)))
    monkeypatch.setattr(run, "ShardRates", lambda rows: compiled.append(ShardRates(rows)))
    with pytest.raises(BilinqError, match="1 before the first actor"):
        solve(System.synthetic())
    kernel: Any = advance_alike
    signatures = len(kernel.signatures)
    assert signatures > 0
    rows = Exchange(System.synthetic(), 1).blocks[0]._rows
    rows.c.flags.writeable = False
    ShardRates(rows)
    assert len(kernel.signatures) == signatures


def test_a_dead_address_is_named_at_once() -> None:
    for address, message in (
        ("127.0.0.1:9", "nothing answers there"),
        ("no-such-host.invalid:6379", "nothing answers"),
    ):
        began = time.monotonic()
        with pytest.raises(Unreachable, match=f"address {address}: {message}"), joined(address):
            pass
        assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "127.0.0.1", ":6379", "127.0.0.1:x", "127.0.0.1:0"])
def test_addresses_are_host_and_port(address: str) -> None:
    result = CliRunner().invoke(cli.app, ["distributed", "--engine", "ray", "--address", address])
    assert result.exit_code == 2
    assert result.stderr == f"error: address must be host:port of a Ray cluster, or auto; got {address!r}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 1}, "shards must be a whole number of at least 2; got 1"),
        ({"shards": (5, 1)}, "job shards must be at most the 4 job classes; got 5"),
        ({"shards": (1, 4)}, "server shards must be at most the 3 server classes; got 4"),
        ({"shards": (1, 1, 1)}, "shards must be one number, or those of job and server shards"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"away": -1.0}, "away must be positive"),
        ({"iterations": 0}, "iterations must be a whole number of at least 1; got 0"),
        ({"start": np.zeros((2, 2))}, "start must have shape"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        solve(System.synthetic(), **options)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="system must be a single one"):
        solve(System([[1.0]], [[0.5]], [1.0], 10.0))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "dask"], "engine must be one of 'in-process', 'ray'; got 'dask'"),
        (
            ["--engine", "ray", "--shards", "two"],
            "shards must be one whole number, or two separated by a comma; got 'two'",
        ),
    ],
)
def test_bad_options_are_reported_in_one_line(words: list[str], message: str) -> None:
    result = CliRunner().invoke(cli.app, ["distributed", *words])
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")


def test_the_certificate_agrees_with_runs_in_process() -> None:
    run = iterate(System.synthetic(seed=1), 0.05, rounds=1500, record="last")
    assert 0.0 <= float(run.gap[0]) <= float(gap_bound(run.system, run.expected[0])) < 1e-3
