"""`bilinq top`: what it draws, and a real terminal with a real service that stops and starts again."""

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Literal, Self

import msgspec
import pytest
from faulty import Faulty
from process import Process, make_key, wait_for
from rich.console import Console
from typer.testing import CliRunner

from bilinq.client.events import Interrupted, ServerEvent, follow, parse
from bilinq.client.transport import Link
from bilinq.commands import app as cli
from bilinq.commands.screen import Picture, View, bar, cell, seconds, short, sparkline
from bilinq.errors import NoKey, Unavailable
from bilinq.live.wire import messages as m
from bilinq.live.wire import samples as w

KNOBS = m.SettingsInfo(2.0, None, False, "thompson")


def event(name: str, data: msgspec.Struct, id: str | None = None) -> ServerEvent:
    return ServerEvent(name, msgspec.json.encode(data).decode(), id)


def view_of(jobs: int, servers: int, samples: int = 60) -> View:
    view = View("http://127.0.0.1:8000")
    names = [f"job [bold]{i}" for i in range(jobs)], [f"server {j}" for j in range(servers)]
    view.update(event("layout", w.Layout(1, *names, 2.0, 0.0, 1.0)))
    for k in range(samples):
        view.update(event("moment", w.Sample(
            id=f"a-{k}", at=1000.0 + k, slots=20, slot_seconds=0.0004, queued=[k * i for i in range(jobs)],
            leased=[1] * jobs,
            submitted=[3] * jobs, finished=[2] * jobs, reward=[0.5] * jobs, wait_p50=1.5, wait_p90=3.0, wait_p99=5.0,
            idle=[1] * servers, busy=[3] * servers, best=10.0, earned=8.0,
            rival=w.BaselineSample("first-come", 7, 0.25, 1.0, 2.0),
        )))  # fmt: skip
    means = [[(i + j) / (jobs + servers) for j in range(servers)] for i in range(jobs)]
    view.update(
        event("state", w.StateView(0.0, 9, 50.0, KNOBS, [1.0] * jobs, means, means, means, means, {"done": 1234}, 5.0))
    )
    lease = w.RecentLease("l1", "j77", "job [bold]0", "s3", "server 0", 1000.0, 1001.5, "finished", 0.8)
    view.update(event("leases", w.Leases([lease] * 20)))
    return view


def drawn(
    view: View, width: int, height: int, *, whole: bool = False, colour: Literal["truecolor"] | None = None
) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=colour is not None, color_system=colour,
                      legacy_windows=False)  # fmt: skip
    console.print(Picture(view, whole=whole))
    return out.getvalue()


def test_sparklines_bars_and_numbers() -> None:
    assert sparkline([0, 1, 2, 4, 8], 4, plain=False) == "▂▃▅█"
    assert sparkline([0.0, 0.0], 9, plain=True) == "__"
    assert sparkline([5.0], 0, plain=False) == ""
    assert (bar(0.5, 4, plain=False), bar(7.0, 3, plain=True), bar(-1.0, 2, plain=True)) == ("██░░", "###", "..")
    assert [short(value) for value in (None, 0.0123, 1.5, 12.34, 1234.0)] == ["-", "0.012", "1.50", "12.3", "1,234"]
    assert [seconds(value) for value in (None, 0.0042, 0.5, 1.5, 90.0)] == ["-", "4.2 ms", "500 ms", "1.5 s", "1.5 min"]
    inks = {str(cell(value, 0.0, 1.0, "x").style) for value in (0.0, 0.5, 1.0)}
    assert len(inks) == 3
    assert str(cell(1.0, 1.0, 1.0, "x").style) == str(cell(0.5, 0.0, 1.0, "x").style)


def test_everything_is_on_the_screen() -> None:
    text = drawn(view_of(3, 2), 130, 40)
    for part in (
        "http://127.0.0.1:8000",
        "1,234 jobs done",
        "job [bold]2",
        "118",
        "server 1",
        "80 %",
        "first-come",
        "j77",
        "2.0 s",
    ):
        assert part in text
    assert "\x1b" not in text
    assert text.count("finished") == 13  # as many as have room


def test_a_shadow_is_compared_with_what_was_earned() -> None:
    view = view_of(2, 2)
    assert "shadow" not in drawn(view, 130, 40) and view.state is not None
    told = w.ShadowInfo("sabr", "on", compared=4100, earned=w.Bounds(0.5, 0.49, 0.51), estimate=w.Bounds(0.532, 0.51, 0.55),
                        gain=w.Bounds(0.032, 0.011, 0.053))  # fmt: skip
    view.update(event("state", msgspec.structs.replace(view.state, shadow=told)))
    line = next(line for line in drawn(view, 200, 40).splitlines() if "shadow sabr: reward" in line)
    assert re.search(r"0\.532 +0\.500 +\+0\.032 \(\+0\.011 to \+0\.053\), 4,100 compared", line)
    view.update(event("state", msgspec.structs.replace(view.state, shadow=w.ShadowInfo("sabr", "starting"))))
    assert re.search(r"shadow sabr +- +starting", drawn(view, 200, 40))


@pytest.mark.parametrize(("width", "height"), [(40, 10), (80, 24), (109, 30), (110, 30), (240, 70)])
def test_many_classes_fit_any_screen(width: int, height: int) -> None:
    text = drawn(view_of(50, 20), width, height)
    assert max(map(len, text.splitlines())) <= width
    assert "more job classes" in text


@pytest.mark.parametrize(("jobs", "servers"), [(2, 2), (26, 3), (50, 20)])
def test_a_terminal_of_80_columns_and_24_lines_shows_whole_tables(jobs: int, servers: int) -> None:
    text = drawn(view_of(jobs, servers), 80, 24)
    lines = text.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert "…" not in text
    for part in ("1,234 jobs done", "jobs queued", "reward/s", "wait, 99 %", "80 %", "busy"):
        assert part in text


def test_printed_once_nothing_is_left_out() -> None:
    text = drawn(view_of(50, 2), 130, 24, whole=True)
    assert all(re.search(rf"job \[bold\]{number}\b", text) for number in range(50))
    assert "more" not in text


def test_reward_per_second_and_colours() -> None:
    view = view_of(2, 2)
    assert view.per_second("submitted", 0) == pytest.approx(3.0)
    assert len(set(re.findall(r"48;2;\d+;\d+;\d+", drawn(view, 130, 40, colour="truecolor")))) == 3


def test_before_anything_is_known() -> None:
    view = View("http://x")
    assert "waiting for the first sample" in drawn(view, 80, 24)
    view.update(Interrupted("cannot reach http://x"))
    assert "cannot reach http://x; retrying" in drawn(view, 80, 24)
    view.update(event("something new", w.Layout(1, [], [], None, 0.0, 1.0)))
    assert view.problem is None
    assert drawn(view_of(0, 0, samples=1), 80, 24)


def test_other_classes_clear_the_samples() -> None:
    view = view_of(2, 2)
    view.update(event("layout", w.Layout(2, ["job [bold]0", "job [bold]1"], ["server 0", "server 1"], 9.0, 0.0, 1.0)))
    assert len(view.samples) == 60
    view.update(event("layout", w.Layout(3, ["a"], ["b"], 9.0, 0.0, 1.0)))
    assert (len(view.samples), view.state) == (0, None)


def test_lines_are_parsed_as_the_standard_says() -> None:
    lines = [
        ":",
        "",
        "id: a-1",
        "event: moment",
        "data: {}",
        "",
        "data: no name",
        "",
        "event:x",
        "data:y: z",
        "",
        "event: cut",
    ]
    assert list(parse(lines)) == [ServerEvent("moment", "{}", "a-1"), ServerEvent("x", "y: z", None)]


def test_errors_are_explained() -> None:
    with Faulty() as live:
        link = Link.to(live.url, live.key, 5.0, 1.0, True)
        assert [one.event for one in follow(link, 5, seconds=0.0) if isinstance(one, ServerEvent)] == ["layout"]
        with pytest.raises(NoKey):
            list(follow(Link.to(live.url, "bq_wrong", 5.0, 1.0, True), 5))
    with pytest.raises(Unavailable, match="cannot reach"):
        list(follow(link, 5, seconds=0.0))
    tried = follow(link, 5)
    assert isinstance(next(tried), Interrupted)
    result = CliRunner().invoke(cli.app, ["top", "--url", live.url, "--key", live.key])
    assert (result.exit_code, "cannot reach" in result.output) == (2, True)


class Terminal:
    """`bilinq top` in a terminal of its own."""

    def __init__(self, url: str, key: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(40, 130)
        environment = os.environ | {"BILINQ_URL": url, "BILINQ_KEY": key, "TERM": "xterm-256color"}
        words = [sys.executable, "-m", "bilinq.commands.app", "top"]
        self.child = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True,
                                      start_new_session=True)  # fmt: skip
        os.close(slave)
        self.screen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        os.close(self.master)

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait(self, pattern: str, timeout: float = 20.0) -> None:
        """Read until a pattern comes that was not there before."""
        end, found = time.monotonic() + timeout, ""
        while not re.search(pattern, found):
            assert time.monotonic() < end, found[-3000:]
            if select.select([self.master], [], [], 0.1)[0]:
                found += os.read(self.master, 65536).decode(errors="replace")
        self.screen = found

    def rest(self) -> str:
        """Return what is left to read after the end."""
        found = ""
        while select.select([self.master], [], [], 0.1)[0]:
            try:
                found += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                break
        return found


def test_in_a_terminal(tmp_path: Path) -> None:
    """It draws, adapts to a new size, shows that the service is unavailable, continues afterwards, and ends by Ctrl-C."""
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with Process(tmp_path, database, "--sample", "0.1") as process, process.client(key) as client:
        client.post("/v1/jobs", json={"jobs": [{"class": "short"}] * 3})
        wait_for(lambda: client.get("/v1/history").json()["moments"])
        port = process.address.rpartition(":")[2]
        with Terminal(process.address, key) as terminal:
            terminal.wait("queues: 3 jobs queued")
            terminal.resize(24, 60)
            terminal.wait(r"\n(\x1b\[[\d;]*m)*waits and reward")  # no longer beside the queues, but below
            assert process.stop() == 0
            terminal.wait("retrying")
            with Process(tmp_path, database, "--sample", "0.1", "--port", port) as again, again.client(key) as client:
                client.post("/v1/jobs", json={"jobs": [{"class": "short"}]})
                terminal.wait("queues: 4 jobs queued")
                terminal.child.send_signal(signal.SIGINT)
                assert terminal.child.wait(10.0) == 0
                assert "\x1b[?1049l" in terminal.rest()  # the screen of before


def test_once_and_as_json(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/live.db"
    key = make_key(database, "admin")
    with Process(tmp_path, database, "--sample", "0.1") as process, process.client(key) as client:
        client.post("/v1/jobs", json={"jobs": [{"class": "short"}] * 3})
        wait_for(lambda: client.get("/v1/history").json()["moments"])
        words = ["top", "--url", process.address, "--key", key]
        for more in ([], ["--once"]):  # output here is no terminal
            text = CliRunner().invoke(cli.app, [*words, *more]).output
            assert "queues: 3 jobs queued, 0 leased" in text
            assert "\x1b" not in text
        found = json.loads(CliRunner().invoke(cli.app, [*words, "--json"]).output)
        assert (found["layout"]["job_classes"], found["moment"]["queued"]) == (["short"], [3])
        assert process.stop() == 0
