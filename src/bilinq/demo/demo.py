"""The demo: a service, a simulated fleet and a load, and what is printed about them."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bilinq.demo.children import Child, Children, Failed, Load, Opened, Ready, Serve, Target, Work
from bilinq.errors import BadInput, BilinqError

FLEETS = ("gpus", "paper", "trace")
"""The fleets by name, also for those who do without NumPy."""
HOST = "127.0.0.1"
PORT = 8000
FIXED = ("config", "advertise", "reward_low", "reward_high", "baseline_url", "baseline_key")
"""Options of `bilinq serve` that are not the user's in a demo."""
SQLITE = "sqlite:///"


def check_fleet(name: str) -> None:
    """Raise if there is no such fleet."""
    if name not in FLEETS:
        raise BadInput(f"--fleet must be one of {', '.join(FLEETS)}; got {name}")


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, or say which of them a demo does not take."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in FIXED:
        if name in given:
            raise BadInput(f"--{name.replace('_', '-')} cannot be chosen with --demo")
    if given.get("host", HOST) != HOST:
        raise BadInput(f"--host must be {HOST} with --demo, which is for this computer only; got {given['host']}")
    return given


def database_of(fleet: str, url: str | None) -> Path:
    """Return the file of a demo: the one at `url`, or demo-FLEET.db in the user's state folder, which is made."""
    if url is None:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        folder = Path(base) / "bilinq"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / f"demo-{fleet}.db"
    if not url.startswith(SQLITE) or not Path(url.removeprefix(SQLITE)).name:
        raise BadInput(f"--database must be {SQLITE}FILE with --demo; got {url.partition('@')[2] or url}")
    file = Path(url.removeprefix(SQLITE)).resolve()
    if not file.parent.is_dir():
        raise BadInput(f"--database must be in a folder that exists; got {file}")
    return file


def beside(file: Path, end: str) -> Path:
    """Return the path of another file of the same demo.

    Examples
    --------
    >>> beside(Path("demo-gpus.db"), "-baseline.db").name
    'demo-gpus-baseline.db'
    """
    return file.with_name(file.name.removesuffix(".db") + end)


def check_port(port: int) -> None:
    """Raise if somebody listens at a port already."""
    if not 0 <= port < 1 << 16:
        raise BadInput(f"--port must be between 0 and 65535; got {port}")
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        raise BadInput(
            f"--port must be free; {port} is not ({error.strerror}): perhaps another demo runs. "
            f"Choose another one, such as --port {free_port()}"
        ) from None


def free_port() -> int:
    """Return the number of a port that is free now."""
    with socket.create_server((HOST, 0)) as found:
        number: int = found.getsockname()[1]
        return number


T = TypeVar("T", Opened, Ready)
PROCESSES = 2
"""Processes that are the servers of a fleet; each has at least two classes of them."""
LEAVE, STOP = 2.0, 3.0
"""Seconds that servers may take to finish their jobs, and services to save what they have learnt."""


class Side:
    """A service with its servers; all processes start at once, since each takes a while to get ready.

    Attributes
    ----------
    service : Child
    workers : list of Child
    opened : Opened
        Keys and more, once it is open.
    url : str
        Where it answers, once it is ready.
    """

    opened: Opened
    url: str

    def __init__(self, children: Children, fleet: str) -> None:
        self._fleet = fleet
        self.service = children.start("service", 0.0)  # until it is ready it has nothing to save
        self.workers = [children.start("workers", LEAVE) for _ in range(PROCESSES)]

    def open(self, options: dict[str, Any]) -> Opened:
        """Tell the service its options, and return its keys as soon as its database is open."""
        self.service.tell(Serve(self._fleet, options))
        self.opened = self._heard(Opened)
        return self.opened

    def begin(self) -> Target:
        """Wait until the service answers, put the servers to work, and return where jobs are to go."""
        self.url, self.service.grace = self._heard(Ready).url, STOP
        names = list(self.opened.servers)
        for k, worker in enumerate(self.workers):
            worker.tell(Work(self._fleet, names[k::PROCESSES], self.url, self.opened.work))
        return Target(self.url, self.opened.submit)

    def _heard(self, kind: type[T]) -> T:
        """Return what the service says next, or raise if it failed."""
        said = self.service.hear(Opened | Ready | Failed)
        if isinstance(said, Failed):
            raise BadInput(said.error)
        if not isinstance(said, kind):
            raise ChildProcessError("a service of the demo did not start")
        return said


PATIENCE = 10.0
"""Seconds after which the user is told why the start takes so long."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_EVERY = 0.2
"""Seconds between two looks whether all processes are there."""

LOOK = (
    "Watch how queues settle, what is learnt sharpens, and the reward climbs towards the best possible. Ctrl-C ends it."
)
SLOW = "still starting; the first time kernels are compiled, which takes two minutes"


def run_demo(fleet: str, options: Mapping[str, Any], say: Callable[[str], None], *, baseline: bool = False) -> None:
    """Run the demo until Ctrl-C or SIGTERM.

    Parameters
    ----------
    fleet : "gpus", "paper" or "trace"
    options : mapping
        Those of `bilinq serve`; None were not given.
    say : callable
        Is told what the user should read, line by line.
    baseline : bool
        Whether another service serves the same jobs first come, first served, beside.
    """
    check_fleet(fleet)
    given = check_options(options)
    file = database_of(fleet, given.get("database"))
    check_port(given.setdefault("port", PORT))
    log = beside(file, ".log")
    with _until_a_signal(), log.open("ab") as lines, Children(lines) as children:
        try:
            _Demo(fleet, children, say).run(given, file, baseline)
        except KeyboardInterrupt:
            say("ending")
            raise
        except ChildProcessError as error:
            raise BilinqError(f"{error}; the log is {log}") from None


class _Demo:
    """A demo that runs: its processes, and what the user is told."""

    def __init__(self, fleet: str, children: Children, say: Callable[[str], None]) -> None:
        self._fleet, self._children, self._say = fleet, children, say

    def run(self, options: dict[str, Any], file: Path, baseline: bool) -> None:
        """Start everything and look after it for ever."""
        sides = [Side(self._children, self._fleet) for _ in range(1 + baseline)]
        load = self._children.start("load", LEAVE)
        with self._patience():
            beside_us = _open_baseline(sides[1], options, file) if baseline else {}
            sides[0].open(options | beside_us | {"database": f"{SQLITE}{file}"})
            load.tell(Load(self._fleet, [side.begin() for side in sides], options.get("seed")))
        self._introduce(*sides)
        self._look_after([side.service for side in sides], [load, *(one for side in sides for one in side.workers)])

    def _introduce(self, ours: Side, baseline: Side | None = None) -> None:
        rewards, servers = ours.opened.rewards, sum(ours.opened.servers.values())
        before = f"going on from {rewards:,} rewards" if rewards else "starting from nothing"
        self._say(f"{ours.opened.about}, {servers} servers; {before}")
        self._say(f"{ours.url}/#key={ours.opened.admin}")
        if baseline is not None:
            self._say(f"first come, first served, has the same jobs at {baseline.url}/#key={baseline.opened.admin}")
        self._say(LOOK)

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Say why it takes long if it does."""
        timer = threading.Timer(PATIENCE, self._say, (SLOW,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _look_after(self, services: Sequence[Child], others: Sequence[Child]) -> None:
        """Start again what has ended, until that is a service."""
        while not any(service.ended for service in services):
            for child in others:
                if child.ended:
                    self._say(f"a process ({child.module}) has ended; starting it again")
                    child.start_again()
            time.sleep(LOOK_EVERY)
        raise ChildProcessError("a service of the demo has ended")


def _open_baseline(side: Side, options: dict[str, Any], file: Path) -> dict[str, Any]:
    """Open a service that serves first come, first served; return what ours must know to show it beside."""
    port = free_port()
    own = {"policy": "first-come", "port": port, "database": f"{SQLITE}{beside(file, '-baseline.db')}"}
    return {"baseline_url": f"http://{HOST}:{port}", "baseline_key": side.open(options | own).read}


@contextmanager
def _until_a_signal() -> Iterator[None]:
    """Run the block until a signal comes, which ends it in order; further ones change nothing."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def end(*_: object) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
