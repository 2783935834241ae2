"""Shards, sweeps and contests on a real Ray: actors that are killed or slow, addresses that do not answer, private files."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bilinq import contest
from bilinq.distributed import Own, System, gap_bound
from bilinq.distributed.on_ray import RayRun, RunProgress, cluster, solve
from bilinq.distributed.rounds import distance
from bilinq.errors import BilinqError, NotSolved, Unreachable
from bilinq.experiments import sweep
from bilinq.lab.figure import ReportOptions
from bilinq.lab.paper import redraw
from bilinq.routing.routers import ClassGaussian, LeastBusy, QueuePrice
from workloads import random_fleet

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals differ elsewhere")
SYSTEM = System.synthetic(12, 4, delay=(0, 0), seed=1)
PLAN = """
slots = 20
replications = 120
[problem]
job_classes = 3
[[policy]]
kind = "sabr"
[[policy]]
kind = "greedy"
"""


class At:
    """Sends signals to shards: (gap at which, name, signal), in order; keeps the states it has seen."""

    def __init__(self, *signals: tuple[float, str, signal.Signals]) -> None:
        self.left, self.states, self.hit = list(signals), list[RunProgress](), list[int]()

    def __call__(self, state: RunProgress) -> None:
        self.states.append(state)
        while self.left and state.gap <= self.left[0][0]:
            _, name, sign = self.left.pop(0)
            os.kill(state.pids[name], sign)
            self.hit.append(state.pids[name])


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    before = dict(os.environ)
    with cluster.joined() as module:
        folder = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).parent
        yield module
    assert not folder.exists()
    assert not module.is_initialized()
    assert {k: v for k, v in os.environ.items() if k.startswith("RAY_AUTH")} == {
        k: v for k, v in before.items() if k.startswith("RAY_AUTH")
    }


def right(run: RayRun, system: System, gap: float = 1e-5) -> None:
    """Check that a run has the allocation of the system, by its own certificate and by the convex program."""
    assert run.gap <= gap and run.gap == float(gap_bound(system, run.expected))
    assert float(distance(system, run.expected)) < 5e-3


def test_shards_find_the_allocation(ray: Any, capfd: pytest.CaptureFixture[str]) -> None:
    run = solve(SYSTEM, shards=(2, 2), tolerance=1e-5)
    right(run, SYSTEM)
    assert run.absent == () and run.restarts == {}
    assert run.round_trip.shape == (2, 2) and (run.round_trip > 0.0).all()
    assert run.messages >= 40 and run.iterations == 10 * run.messages
    assert run.bytes == run.messages // 2 * 3 * 2 * 8  # sums, loads and prices of two classes each
    assert run.history[-1, 1] <= 1e-5 < run.history[0, 1]
    assert capfd.readouterr() == ("", "")


def test_killed_shards_are_replaced(ray: Any, capfd: pytest.CaptureFixture[str]) -> None:
    at = At((0.5, "job shard 0", signal.SIGKILL), (0.5, "server shard 1", signal.SIGKILL))
    run = solve(SYSTEM, shards=(2, 2), tolerance=1e-5, away=60.0, seconds=120.0, progress=at)
    assert run.restarts == {"job shard 0": 1, "server shard 1": 1} and run.absent == ()
    assert at.states[-1].pids["job shard 0"] != at.hit[0]
    right(run, SYSTEM)
    assert capfd.readouterr() == ("", "")


def test_a_slow_shard_does_not_stop_the_others(ray: Any) -> None:
    """A job shard is stopped for a second: the other continues to exchange messages, and the result is right."""
    at = At((0.5, "job shard 1", signal.SIGSTOP))
    began: list[float] = []

    def progress(state: RunProgress) -> None:
        at(state)
        if at.hit and not began:
            began.append(state.seconds)
        if at.hit and len(began) == 1 and state.seconds > began[0] + 1.0:
            os.kill(at.hit[0], signal.SIGCONT)
            began.append(state.seconds)

    run = solve(SYSTEM, shards=(2, 2), tolerance=1e-5, away=60.0, seconds=120.0, progress=progress)
    meanwhile = [m.messages for m in at.states if began[0] < m.seconds <= began[1]]
    assert meanwhile[-1] - meanwhile[0] > 20
    assert run.restarts == {} and run.absent == ()
    right(run, SYSTEM)


def test_shards_that_stop_answering_leave_the_problem(ray: Any) -> None:
    at = At((0.5, "server shard 1", signal.SIGSTOP), (0.5, "job shard 2", signal.SIGSTOP))
    try:
        run = solve(SYSTEM, shards=(3, 2), tolerance=1e-4, away=1.5, seconds=120.0, progress=at)
    finally:
        for pid in at.hit:
            os.kill(pid, signal.SIGKILL)
    assert run.absent == ("job shard 2 (classes 8 to 11)", "server shard 1 (classes 2 to 3)")
    rest = System([*SYSTEM.queue[:8], 0, 0, 0, 0], SYSTEM.reward, [*SYSTEM.capacity[:2], 0, 0], SYSTEM.V)
    assert (run.expected[8:] == 0.0).all() and (run.expected[:, 2:] == 0.0).all()
    assert run.gap <= 1e-4 and float(distance(rest, run.expected)) < 0.02


def test_errors_and_time_limits_reach_the_caller(ray: Any) -> None:
    def price(z: Any, n: Any) -> Any:
        if os.environ.get("RAY_JOB_ID") or "default_worker" in sys.argv[0]:
            raise ZeroDivisionError("no price today")
        return z / n

    broken = Own(price, slope=lambda z, n: 1.0 / n + 0.0 * z)
    with pytest.raises(ZeroDivisionError, match="no price today"):
        solve(System.synthetic(4, 2, delay=(0, 0), penalty=broken), shards=2)
    with pytest.raises(NotSolved, match=r"gap .* after .* s on Ray"):
        solve(SYSTEM, shards=2, tolerance=1e-15, seconds=0.3)


def test_a_sweep_on_ray_is_the_sweep_on_processes(ray: Any, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(PLAN, encoding="utf-8")
    plan, out = sweep.load(file), tmp_path / "ray"
    here = sweep.run(plan, tmp_path / "here", workers=2)
    there = sweep.run(plan, out, engine="ray")
    for one, two in zip(here, there, strict=True):
        assert one.samples.keys() == two.samples.keys()
        for name, values in one.samples.items():
            np.testing.assert_array_equal(values, two.samples[name])
    (out / f"{plan.cells()[1].key}.npz").unlink()
    again = sweep.run(plan, out, workers=1, engine="ray")
    assert [result.found for result in again] == [True, False]
    np.testing.assert_array_equal(again[1].samples["regret"], here[1].samples["regret"])


def test_a_contest_on_ray_is_the_contest_in_this_process(ray: Any, tmp_path: Path) -> None:
    """Values, rewards and waits are the same; what Ray finished is read from the folder, with its computing times."""
    routers = {"least busy": LeastBusy(), "priced": QueuePrice(ClassGaussian())}
    options: dict[str, Any] = {"wait": 1.0, "seeds": 3, "tuning_seeds": 2}
    here = contest(random_fleet(200), routers, **options)
    there = contest(random_fleet(200), routers, **options, engine="ray", out=tmp_path)
    for one, two in zip(here, there, strict=True):
        assert (one.name, one.value, one.outcome, one.reached) == (two.name, two.value, two.outcome, two.reached)
        for name in one.samples.keys() - {"seconds_per_decision"}:
            np.testing.assert_array_equal(one.samples[name], two.samples[name])
    assert contest(random_fleet(200), routers, **options, out=tmp_path).to_json() == there.to_json()


def test_a_contest_on_ray_names_the_router_that_raises(ray: Any) -> None:
    routers = {"least busy": LeastBusy(), "broken": QueuePrice(ClassGaussian(scale="1"))}  # type: ignore[arg-type]
    with pytest.raises(BilinqError, match=r"^contestant 'broken', seed 1000001: TypeError: "):
        contest(random_fleet(50), routers, 1.0, seeds=2, tuning_seeds=1, engine="ray")


def test_a_figure_on_ray_is_the_figure_in_this_process(ray: Any, tmp_path: Path) -> None:
    options = ReportOptions(quick=True, replications=2)
    redraw(options, tmp_path / "here", ["load"], workers=1)
    redraw(options, tmp_path / "ray", ["load"], engine="ray")
    for name in ("claims.json", "data/load.csv", "figures/load.svg"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes()


def test_the_command_joins_a_cluster(ray: Any, tmp_path: Path) -> None:
    address = ray.get_runtime_context().gcs_address
    assert address.startswith("127.0.0.1:")
    words = ["distributed", "--engine", "ray", "--shards", "2,1", "--address", address, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "bilinq.commands.app", *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    printed = json.loads(done.stdout)
    assert [engine["engine"] for engine in printed["engines"]] == ["in process", "convex program", "Ray, 2 + 1 shards"]
    assert all(engine["gap"] <= 0.01 for engine in printed["engines"])
    assert printed["engines"][2]["messages"] > 0 and printed["absent"] == []
    assert ray.is_initialized() and list(tmp_path.iterdir()) == []


def test_files_are_the_users_alone_and_ports_the_machines(ray: Any) -> None:
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700 and stat.S_IMODE(token.stat().st_mode) == 0o600
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert session.is_relative_to(token.parent) and (session / "logs").is_dir()
    assert not token.is_relative_to(Path.cwd())
    port = int(ray.get_runtime_context().gcs_address.partition(":")[2])
    listening = [
        line.split()[1] for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()
    ]
    hosts = {entry.partition(":")[0] for entry in listening if entry.endswith(f":{port:04X}")}
    assert hosts and hosts <= {"0100007F", "0000000000000000FFFF00000100007F"}


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_an_address_where_something_else_listens_is_named_in_time(words: bytes) -> None:
    """Every connection gets the same words, or none: the first, which only checks that somebody listens, and Ray's."""

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(words)
            while connection.recv(1024):
                pass

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=serve, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(Unreachable, match=f"^address {address}: what answers there is not Ray$"):
            cluster.probe(address)
        assert time.monotonic() - began < 10.0


def test_a_cluster_with_another_token_is_named(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ray.get_runtime_context().gcs_address
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(Unreachable, match="expects another token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"):
        cluster.probe(address)
