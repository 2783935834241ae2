"""The demo: a service, its simulated workers and jobs, and what the user reads about them."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from bilinq.demo.processes import SIGNALS, Children, Failed, LoadTask, Opened, Ready, ServeTask, Target, WorkTask
from bilinq.errors import BadInput, BilinqError

FLEETS = ("gpus", "paper", "trace")  # names of the fleets; here, so that this module does not import NumPy
HOST = "127.0.0.1"
PORT = 8000
FIXED = ("config", "advertise", "reward_low", "reward_high", "baseline_url", "baseline_key")
"""Options of `bilinq serve` that the demo sets itself."""
SQLITE = "sqlite:///"


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given; raise for those that a demo does not accept."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in FIXED:
        if name in given:
            raise BadInput(f"--{name.replace('_', '-')} cannot be used with --demo")
    if given.get("host", HOST) != HOST:
        raise BadInput(f"--host must be {HOST} with --demo, which is for this computer only; got {given['host']}")
    return given


def database_of(fleet: str, url: str | None) -> Path:
    """Return the database file: the one at `url`, or demo-FLEET.db in the state folder of the user, which is created."""
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
    """Return the path of another file of the same demo, such as demo-gpus-baseline.db for demo-gpus.db."""
    return file.with_name(file.name.removesuffix(".db") + end)


def check_port(port: int) -> None:
    """Raise if the port is in use."""
    if not 0 <= port < 1 << 16:
        raise BadInput(f"--port must be between 0 and 65535; got {port}")
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        raise BadInput(
            f"--port must be free; {port} is not ({error.strerror}): perhaps another demo is running. "
            f"Choose another port, such as --port {free_port()}"
        ) from None


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server((HOST, 0)) as found:
        number: int = found.getsockname()[1]
        return number


T = TypeVar("T", Opened, Ready)
PROCESSES = 2  # processes that run the workers of a fleet, each those of several server classes
LEAVE, STOP = 2.0, 3.0  # seconds for workers to finish their jobs, and for services to save what they have learnt


class Deployment:
    """A service with its workers; all processes start at the same time, since each takes a while to get ready.

    `opened`, the fleet and keys, is set by `open`, and `url`, the address of the service, by `begin`.
    """

    opened: Opened
    url: str

    def __init__(self, children: Children, fleet: str) -> None:
        self._fleet = fleet
        self.service = children.start("service", 0.0)  # nothing to save before it is ready
        self.workers = [children.start("traffic workers", LEAVE) for _ in range(PROCESSES)]

    def open(self, options: dict[str, Any]) -> Opened:
        """Send the service its options, and return its keys as soon as its database is open."""
        self.service.send(ServeTask(self._fleet, options))
        self.opened = self._receive(Opened)
        return self.opened

    def begin(self) -> Target:
        """Wait until the service is ready, start the workers, and return where to submit jobs."""
        self.url, self.service.grace = self._receive(Ready).url, STOP
        names = list(self.opened.servers)
        for k, worker in enumerate(self.workers):
            worker.send(WorkTask(self._fleet, names[k::PROCESSES], self.url, self.opened.work))
        return Target(self.url, self.opened.submit)

    def _receive(self, kind: type[T]) -> T:
        message = self.service.receive(Opened | Ready | Failed)
        if isinstance(message, Failed):
            raise BadInput(message.error)
        if not isinstance(message, kind):
            raise ChildProcessError("a service of the demo did not start")
        return message


PATIENCE = 10.0  # seconds between messages that explain why the start takes so long
POLL_EVERY = 0.2  # seconds between checks whether all processes run

WATCH = "Watch the queues settle and the reward approach the best possible reward. Press Ctrl-C to stop."
LOADING = "loading; the first start compiles kernels for this machine, once"
STARTING = "the service is starting: "  # begins what /readyz says while kernels are compiled


def run_demo(fleet: str, options: Mapping[str, Any], show: Callable[[str], None], *, baseline: bool = False) -> None:
    """Run the demo until Ctrl-C or SIGTERM, with `options` of `bilinq serve`, and `show` lines to the user.

    With `baseline`, a second service gets the same jobs and serves them first come, first served.
    """
    if fleet not in FLEETS:
        raise BadInput(f"--fleet must be one of {', '.join(FLEETS)}; got {fleet}")
    given = check_options(options)
    file = database_of(fleet, given.get("database"))
    check_port(given.setdefault("port", PORT))
    log = beside(file, ".log")
    with _until_a_signal(), log.open("ab") as lines, Children(lines) as children:
        try:
            _run(fleet, children, show, given, file, baseline)
        except KeyboardInterrupt:
            show("Stopping.")
            raise
        except ChildProcessError as error:
            raise BilinqError(f"{error}; the log is {log}") from None


def _run(
    fleet: str, children: Children, show: Callable[[str], None], options: dict[str, Any], file: Path, baseline: bool
) -> None:
    """Start all processes and keep them running."""
    deployments = [Deployment(children, fleet) for _ in range(1 + baseline)]
    load = children.start("traffic load", LEAVE)
    with _reports(show, f"http://{HOST}:{options['port']}"):
        compared = _open_baseline(deployments[1], options, file) if baseline else {}
        deployments[0].open(options | compared | {"database": f"{SQLITE}{file}"})
        load.send(LoadTask(fleet, [one.begin() for one in deployments], options.get("seed")))
    _introduce(show, *deployments)
    others = [load, *(worker for one in deployments for worker in one.workers)]
    while not any(one.service.ended for one in deployments):
        for child in others:
            if child.ended:
                show(f"A process ({child.name}) has ended; starting it again.")
                child.start_again()
        time.sleep(POLL_EVERY)
    raise ChildProcessError("a service of the demo has ended")


def _introduce(show: Callable[[str], None], ours: Deployment, baseline: Deployment | None = None) -> None:
    rewards, servers = ours.opened.rewards, sum(ours.opened.servers.values())
    before = f"continues with what it learnt from {rewards:,} rewards" if rewards else "has learnt nothing yet"
    show(f"Fleet: {ours.opened.about}, {servers} servers. The scheduler {before}.")
    show(f"Dashboard: {ours.url}/#key={ours.opened.admin}")
    if baseline is not None:
        show(f"Baseline, first come, first served: {baseline.url}/#key={baseline.opened.admin}")
    show(WATCH)


@contextmanager
def _reports(show: Callable[[str], None], url: str) -> Iterator[None]:
    """Show every ten seconds how far a slow start is."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(PATIENCE):
            text = _work(url)
            if not done.is_set():
                show(f"Still starting: {text}")

    threading.Thread(target=report, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _work(url: str) -> str:
    """Return what the service at `url` is compiling and how far it is, if it answers already."""
    import httpx

    try:
        text = str(httpx.get(f"{url}/readyz", timeout=2.0, trust_env=False).json()["detail"])
    except (httpx.HTTPError, ValueError, KeyError):
        return LOADING
    return text.removeprefix(STARTING) if text.startswith(STARTING) else LOADING


def _open_baseline(deployment: Deployment, options: dict[str, Any], file: Path) -> dict[str, Any]:
    """Open a service that serves first come, first served; return the options with which ours compares itself."""
    port = free_port()
    own = {"policy": "first-come", "port": port, "database": f"{SQLITE}{beside(file, '-baseline.db')}"}
    return {"baseline_url": f"http://{HOST}:{port}", "baseline_key": deployment.open(options | own).read}


@contextmanager
def _until_a_signal() -> Iterator[None]:
    """Run the block until a signal, which ends it cleanly; further signals are ignored."""
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
