"""The parts of the demo that need no process: fleets, options, files, and which databases it accepts."""

import asyncio
import socket
import stat
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from typer.testing import CliRunner

from bilinq import oracle
from bilinq.commands import app as cli
from bilinq.demo import demo, fleets
from bilinq.demo.demo import FLEETS, PORT, beside, check_options, check_port, database_of, free_port
from bilinq.demo.fleets import Fleet, make_fleet
from bilinq.demo.processes import TOO_OFTEN, Children, Opened, Target
from bilinq.demo.service import open_database
from bilinq.demo.traffic import arrivals
from bilinq.errors import BadInput
from bilinq.live.keys import LOCAL, create_key, list_keys
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import Transaction, open_store
from bilinq.live.store.job_tables import JobRow, get_job, insert_jobs
from bilinq.live.wire.access import KeyInfo, NewKey

T = TypeVar("T")


@pytest.fixture(params=FLEETS)
def fleet(request: pytest.FixtureRequest) -> Fleet:
    return make_fleet(request.param)


def opened(file: Path, name: str = "paper") -> Opened:
    one = make_fleet(name)
    return asyncio.run(open_database(one.settings({"database": f"sqlite:///{file}"}), one))


def change(file: Path, operation: Callable[[Transaction], T]) -> T:
    """Return what an operation returns on a database that nobody uses."""

    async def write() -> T:
        store = open_store(f"sqlite:///{file}")
        await store.start(wait=False)
        try:
            return await store.write(operation)
        finally:
            await store.stop()

    return asyncio.run(write())


def keys_of(file: Path) -> list[KeyInfo]:
    return change(file, lambda tx: list_keys(tx))


def test_every_fleet_is_a_service_that_knows_no_reward(fleet: Fleet) -> None:
    settings = fleet.settings({"port": 8001})
    assert isinstance(settings, ServiceSettings) and settings.port == 8001 and settings.host == "127.0.0.1"
    assert [one.name for one in settings.job_class] == list(fleet.problem.job_names)
    assert [one.name for one in settings.server_class] == list(fleet.servers)
    assert settings.reward.low == fleet.low and settings.reward.high == fleet.high
    assert settings.target_wait == fleets.TARGET_WAIT
    assert fleet.settings({"V": 30.0}).target_wait is None


def test_settings_of_another_service_are_ignored(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BILINQ_DATABASE", "sqlite:///production.db")
    monkeypatch.setenv("BILINQ_HOST", "0.0.0.0")
    settings = fleet.settings({})
    assert settings.database == "sqlite:///bilinq.db" and settings.host == "127.0.0.1"


def test_rewards_fit_the_declared_range(fleet: Fleet) -> None:
    """Where a mean is less than three standard deviations from an end, clipping would shift what is learnt."""
    mean, noise = fleet.problem.mean_reward, fleet.problem.noise
    assert (mean - 2.99 * noise > fleet.low).all() and (mean + 2.99 * noise < fleet.high).all()
    assert (noise > 0.0).all()


def test_a_reward_is_its_mean_and_its_luck() -> None:
    one = make_fleet("gpus")
    place = one.problem.job_names.index("Recommendation (512)"), one.problem.server_names.index("V100")
    mean, noise = one.problem.mean_reward[place], one.problem.noise[place]
    assert one.reward("Recommendation (512)", "V100", 0.0) == mean
    assert one.reward("Recommendation (512)", "V100", 1.0) == pytest.approx(mean + noise)
    assert one.reward("Recommendation (512)", "V100", 1e3) == one.high
    assert one.reward("Recommendation (512)", "V100", -1e3) == one.low


def test_the_load_is_below_capacity_and_worth_watching(fleet: Fleet) -> None:
    """Between one and twenty jobs a second, of 0.2 to 1.2 s; known rewards earn a fifth more than any server does."""
    problem = fleet.problem
    assert problem.traffic.sum() < 0.7 * problem.servers.sum()
    assert 1.0 < fleet.rate.sum() < 20.0
    assert 0.2 <= fleet.shortest < fleet.longest <= 1.2
    anywhere = problem.traffic @ problem.mean_reward @ problem.servers / problem.servers.sum()
    assert oracle(problem).value > 1.2 * anywhere


def test_jobs_arrive_as_a_poisson_process(fleet: Fleet) -> None:
    """Numbers of each class within five standard errors, gaps as in an exponential law; durations and luck as specified."""
    came = list(islice(arrivals(fleet, np.random.default_rng(5)), 4000))
    at = np.array([one.at for one in came])
    gaps = np.diff(at, prepend=0.0)
    assert abs(gaps.mean() * fleet.rate.sum() - 1.0) < 5.0 / len(came) ** 0.5
    assert abs(gaps.std() / gaps.mean() - 1.0) < 5.0 / len(came) ** 0.5
    classes = [one.job.job_class for one in came]
    for name, rate in zip(fleet.problem.job_names, fleet.rate, strict=True):
        expected = at[-1] * rate
        assert abs(classes.count(name) - expected) < 5.0 * expected**0.5
    seconds = np.array([one.job.payload["seconds"] for one in came])
    assert seconds.min() >= fleet.shortest and seconds.max() <= fleet.longest
    luck = np.array([one.job.payload["luck"] for one in came])
    assert abs(luck.mean()) < 5.0 / len(came) ** 0.5 and abs(luck.std() - 1.0) < 5.0 / (2 * len(came)) ** 0.5


def test_the_same_seed_gives_the_same_jobs() -> None:
    one, first, again = make_fleet("paper"), np.random.default_rng(3), np.random.default_rng(3)
    assert list(islice(arrivals(one, first), 50)) == list(islice(arrivals(one, again), 50))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "--host must be 127.0.0.1 with --demo, which is for this computer only; got 0.0.0.0"),
        ({"host": "localhost"}, "--host must be 127.0.0.1"),
        ({"config": "service.toml"}, "--config cannot be used with --demo"),
        ({"reward_low": 0.0}, "--reward-low cannot be used with --demo"),
    ],
)
def test_options_that_a_demo_does_not_accept(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_options(options)
    assert str(caught.value).startswith(message)


def test_options_that_were_not_given_are_left_out() -> None:
    assert check_options({"host": "127.0.0.1", "port": None, "V": 3.0}) == {"host": "127.0.0.1", "V": 3.0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--demo", "--fleet", "../x"], "--fleet must be one of gpus, paper, trace; got ../x"),
        (["--demo", "--host", "0.0.0.0"], "--host must be 127.0.0.1"),
        (["--demo", "--database", "postgresql://me:secret@there/x"], "--database must be sqlite:///FILE with --demo; got"),
        (["--demo", "--database", "sqlite:////no/such/folder/x.db"], "--database must be in a folder that exists"),
        (["--demo", "--port", "70000"], "--port must be between 0 and 65535; got 70000"),
        (["--fleet", "paper"], "--fleet and --baseline are options of --demo"),
        (["--no-baseline"], "--fleet and --baseline are options of --demo"),
    ],
)  # fmt: skip
def test_the_command_refuses(words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    result = CliRunner().invoke(cli.app, ["serve", *words])
    assert result.exit_code == 2
    assert f"error: {message}" in result.output


def test_a_port_in_use_is_an_error_that_suggests_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=rf"--port must be free; {port} is not .*--port \d+"):
            check_port(port)
    check_port(free_port())
    assert PORT == 8000


def test_the_state_folder_is_the_user_s_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = database_of("gpus", None)
    assert file == tmp_path / "state" / "bilinq" / "demo-gpus.db"
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert database_of("gpus", f"sqlite:///{tmp_path}/my.db") == tmp_path / "my.db"
    assert beside(tmp_path / "my.db", "-baseline.db").name == "my-baseline.db"
    assert beside(tmp_path / "plain", ".log").name == "plain.log"


def test_each_start_makes_keys_and_revokes_the_last_ones(tmp_path: Path) -> None:
    file = tmp_path / "demo.db"
    first, second = opened(file), opened(file)
    assert {first.admin, first.work, first.submit, first.read}.isdisjoint({second.admin, second.work, second.submit})
    known = {info.prefix: info for info in keys_of(file)}
    for key in (first.admin, first.work, first.submit, first.read):
        assert known[key[3:11]].revoked is not None
    assert known[second.work[3:11]].scopes == ["work"] and known[second.work[3:11]].revoked is None
    assert second.servers == {"server 1": 2, "server 2": 2} and second.rewards == 0


def test_jobs_that_still_waited_are_cancelled(tmp_path: Path) -> None:
    file = tmp_path / "demo.db"
    opened(file)
    old = JobRow(1, "default", "job 1", "queued", None, None, "null", 1, 1, 0, submitted=1.0)
    change(file, lambda tx: insert_jobs(tx, [old, old._replace(id=2, state="done", ended=2.0)]))
    opened(file)
    found = change(file, lambda tx: [get_job(tx, id) for id in (1, 2)])
    assert [row and row.state for row in found] == ["cancelled", "done"]


def test_the_database_of_another_fleet_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "demo.db")
    with pytest.raises(
        BadInput,
        match=r"--database must be new or belong to a demo of fleet gpus; .*demo.db belongs to a demo of fleet paper",
    ):
        opened(tmp_path / "demo.db", "gpus")


def test_the_database_of_a_real_service_is_refused_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "production.db"

    change(file, lambda tx: create_key(tx, LOCAL, NewKey(["admin"], "demo: not"), 0.0))
    with pytest.raises(BadInput, match="belongs to a service that is no demo"):
        opened(file)
    assert [info.revoked for info in keys_of(file)] == [None]


def test_a_database_in_use_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    file, message = (
        tmp_path / "demo.db",
        r"in use by process \d+.*end the other demo, or choose another file with --database",
    )

    async def hold() -> None:
        store = open_store(f"sqlite:///{file}")
        await store.start(wait=False)
        try:
            one = make_fleet("paper")
            with pytest.raises(BadInput, match=message):
                await open_database(one.settings({"database": f"sqlite:///{file}"}), one)
        finally:
            await store.stop()

    asyncio.run(hold())


def test_a_process_that_ends_at_once_is_not_started_for_ever(tmp_path: Path) -> None:
    """The package has no module `nothing`, so that its process ends at once."""
    with (tmp_path / "log").open("wb") as log, Children(log) as children:
        child = children.start("nothing", grace=5.0)
        child.send(Target("http://127.0.0.1:1", "key"))
        for _ in range(TOO_OFTEN - 1):
            child.start_again()
        with pytest.raises(
            ChildProcessError, match=r"a process of the demo \(nothing\) keeps ending soon after its start"
        ):
            child.start_again()


def test_a_process_ends_when_its_pipe_is_closed_and_is_killed_if_it_does_not(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        with Children(log) as children:
            waits = children.start("traffic load", grace=30.0)
            assert not waits.ended
        assert waits.ended
        with Children(log) as children:
            hangs = children.start("traffic load", grace=0.0)
        assert hangs.ended


class Compiles(BaseHTTPRequestHandler):
    """A service that starts."""

    def do_GET(self) -> None:
        body = b'{"detail": "the service is starting: compiling kernels for this machine, 3 of 9"}'
        self.send_response(503)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def test_a_slow_start_says_again_and_again_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What /readyz says, once the service answers; and nothing after the start."""
    monkeypatch.setattr(demo, "PATIENCE", 0.02)
    shown: list[str] = []

    def wait_for(text: str) -> None:
        end = time.monotonic() + 20.0
        while shown.count(f"Still starting: {text}") < 2:
            assert time.monotonic() < end, shown
            time.sleep(0.01)

    port = free_port()
    with demo._reports(shown.append, f"http://127.0.0.1:{port}"):
        wait_for(demo.LOADING)
        with HTTPServer(("127.0.0.1", port), Compiles) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            wait_for("compiling kernels for this machine, 3 of 9")
            server.shutdown()
    many = len(shown)
    time.sleep(0.1)
    assert len(shown) == many
