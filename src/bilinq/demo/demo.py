"""The demo itself: it starts services, servers and a stream of jobs, says where to watch, and ends them all on Ctrl-C."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bilinq.demo.children import Child, Children
from bilinq.demo.places import (
    HOST,
    PORT,
    SQLITE,
    beside,
    check_fleet,
    check_options,
    check_port,
    database_of,
    free_port,
)
from bilinq.demo.side import LEAVE, Side
from bilinq.demo.tasks import Load
from bilinq.errors import BilinqError

PATIENCE = 10.0
"""Seconds after which the user is told why the start takes so long."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_EVERY = 0.2
"""Seconds between two looks whether all processes are there."""

LOOK = (
    "Watch how queues settle, what is learnt sharpens, and the reward climbs towards the best possible. Ctrl-C ends it."
)
SLOW = "still starting; the first time kernels are compiled, which takes two minutes"


def run_demo(fleet: str, options: Mapping[str, Any], say: Callable[[str], None], *, rival: bool = False) -> None:
    """Run the demo until Ctrl-C or SIGTERM.

    Parameters
    ----------
    fleet : "gpus", "paper" or "trace"
    options : mapping
        Those of `bilinq serve`; None were not given.
    say : callable
        Is told what the user should read, line by line.
    rival : bool
        Whether another service serves the same jobs first come, first served, beside.
    """
    check_fleet(fleet)
    given = check_options(options)
    file = database_of(fleet, given.get("database"))
    check_port(given.setdefault("port", PORT))
    log = beside(file, ".log")
    with _until_a_signal(), log.open("ab") as lines, Children(lines) as children:
        try:
            _Demo(fleet, children, say).run(given, file, rival)
        except KeyboardInterrupt:
            say("ending")
            raise
        except ChildProcessError as error:
            raise BilinqError(f"{error}; the log is {log}") from None


class _Demo:
    """A demo that runs: its processes, and what the user is told."""

    def __init__(self, fleet: str, children: Children, say: Callable[[str], None]) -> None:
        self._fleet, self._children, self._say = fleet, children, say

    def run(self, options: dict[str, Any], file: Path, rival: bool) -> None:
        """Start everything and look after it for ever."""
        sides = [Side(self._children, self._fleet) for _ in range(1 + rival)]
        load = self._children.start("load", LEAVE)
        with self._patience():
            beside_us = _open_rival(sides[1], options, file) if rival else {}
            sides[0].open(options | beside_us | {"database": f"{SQLITE}{file}"})
            load.tell(Load(self._fleet, [side.begin() for side in sides], options.get("seed")))
        self._introduce(*sides)
        self._look_after([side.service for side in sides], [load, *(one for side in sides for one in side.workers)])

    def _introduce(self, ours: Side, rival: Side | None = None) -> None:
        rewards, servers = ours.opened.rewards, sum(ours.opened.servers.values())
        before = f"going on from {rewards:,} rewards" if rewards else "starting from nothing"
        self._say(f"{ours.opened.about}, {servers} servers; {before}")
        self._say(f"{ours.url}/#key={ours.opened.admin}")
        if rival is not None:
            self._say(f"first come, first served, has the same jobs at {rival.url}/#key={rival.opened.admin}")
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


def _open_rival(side: Side, options: dict[str, Any], file: Path) -> dict[str, Any]:
    """Open a service that serves first come, first served; return what ours must know to show it beside."""
    port = free_port()
    own = {"policy": "first-come", "port": port, "database": f"{SQLITE}{beside(file, '-rival.db')}"}
    return {"rival_url": f"http://{HOST}:{port}", "rival_key": side.open(options | own).read}


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
