"""A Ray cluster to work on: one that runs already, or one of our own, private to the user, that ends with us."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from bilinq.errors import BadInput, BilinqError, Unreachable

ANSWER = 4.0
"""Seconds that a cluster may take to answer at all: to a connection, and then to a greeting."""
PATIENCE = 30.0
"""Seconds that a cluster which answers may take to let us in; Ray itself tries for minutes."""
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
SETTINGS = b"\x04"
"""How a client greets in HTTP/2, with empty settings; the kind of frame that the server must then send first."""
REFUSED = "InvalidAuthToken"
"""What Ray writes again and again while a cluster does not accept our token."""
STORE = 2**28
"""Bytes of shared memory for the objects of a Ray of our own."""
ROOM = 30
"""The longest name of a temporary folder that leaves room for Ray's sockets, whose names have 107 bytes at most."""
SCRIPT = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)"
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With this set to 0 Ray keeps to the loopback address instead of looking for one that other machines can reach."""


@contextmanager
def joined(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """Give the module `ray`, connected; what was begun here ends with the block, what was there before stays.

    Parameters
    ----------
    address : str, optional
        Where a cluster runs, as host:port, or "auto" for the one that `ray start` began or RAY_ADDRESS names. A Ray of our
        own unless given: on this machine alone, its files in a folder that only the user can open.
    cpus : int, optional
        Cores that a Ray of our own uses; all unless given.

    Raises
    ------
    Unreachable
        If no cluster answers there, within ten seconds.
    BilinqError
        If Ray is not installed.

    Notes
    -----
    If this process is connected to Ray already, that connection is used and kept.
    """
    ray = imported()
    if ray.is_initialized():
        yield ray
        return
    with _quiet(), _started(ray, cpus) if address is None else _connected(ray, address):
        yield ray


def imported() -> Any:
    """Return the module `ray`, or say what to install."""
    try:
        return import_module("ray")
    except ImportError as error:
        raise BilinqError(f"the Ray engine needs Ray: pip install 'bilinq[ray]' ({error})") from None


@contextmanager
def _started(ray: Any, cpus: int | None) -> Iterator[None]:
    """Start a Ray on this machine, reachable from this machine alone, with a token of its own."""
    folder = Path(tempfile.mkdtemp(prefix="bilinq-", dir=None if len(tempfile.gettempdir()) < ROOM else "/tmp"))
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH"))))
    settings = {"RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": path}
    try:
        with _credentials(), _environment(settings), _loopback(wanted=True), _ended(ray):
            try:
                ray.init(
                    address="local", num_cpus=cpus, object_store_memory=STORE, include_dashboard=False,
                    log_to_driver=False, configure_logging=False, _temp_dir=str(folder / "ray"),
                )  # fmt: skip
            except (RuntimeError, OSError) as error:
                raise BilinqError(f"Ray does not start on this machine: {error}") from None
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Join a cluster that runs already."""
    local = probe(address)
    with _loopback(wanted=local), _ended(ray):
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (RuntimeError, OSError) as error:
            raise Unreachable(f"address {address}: {error}") from None
        yield


@contextmanager
def _ended(ray: Any) -> Iterator[None]:
    """Leave the cluster at the end of the block, also if joining it was interrupted; one of our own ends by that."""
    try:
        yield
    finally:
        ray.shutdown()


def probe(address: str) -> bool:
    """Raise `Unreachable` unless a cluster lets us in; return whether the address is this machine's own loopback.

    Another process tries, since an attempt of Ray's own cannot be stopped, takes minutes and writes to the terminal.
    """
    local = _answers(*_parts(address), address)
    command = [sys.executable, "-c", SCRIPT, address]
    environment = os.environ | ({LOOPBACK: "0"} if local else {})
    with tempfile.TemporaryFile() as file:
        attempt = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        try:
            told, until = "", time.monotonic() + PATIENCE
            while attempt.poll() is None and time.monotonic() < until and REFUSED not in told:
                time.sleep(0.02)
                told = os.pread(file.fileno(), 2**16, 0).decode(errors="replace")
        finally:
            attempt.kill()
            attempt.wait()
        told = os.pread(file.fileno(), 2**16, 0).decode(errors="replace")
    if attempt.returncode:
        raise Unreachable(f"address {address}: no Ray cluster let us in{_reason(told)}")
    return local


def _parts(address: str) -> tuple[str, int]:
    """Return host and port; those of the cluster that Ray finds itself if the address is "auto"."""
    if address == "auto":
        try:
            found: str = import_module("ray._private.services").canonicalize_bootstrap_address_or_die("auto")
        except ConnectionError:
            raise Unreachable("address auto: no Ray cluster runs on this machine, and RAY_ADDRESS names none") from None
        return _parts(found)
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in address or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadInput(f"address must be host:port of a Ray cluster, or auto; got {address!r}")
    return host, int(port)


def _answers(host: str, port: int, address: str) -> bool:
    """Raise `Unreachable` if nothing there answers as Ray would, in HTTP/2; return whether it is on the loopback."""
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=ANSWER) as connection:
            if os.environ.get("RAY_USE_TLS") != "1":
                connection.sendall(HELLO)
                if connection.recv(9)[3:4] != SETTINGS:
                    raise Unreachable(f"address {address}: what answers there is not Ray")
            return ipaddress.ip_address(connection.getpeername()[0]).is_loopback
    except TimeoutError:
        raise Unreachable(f"address {address}: nothing answers there within {ANSWER:g} s") from None
    except OSError as error:
        raise Unreachable(f"address {address}: nothing answers there ({error})") from None


def _reason(told: str) -> str:
    """Return what is known of a failed attempt, from what Ray wrote."""
    if REFUSED in told or "AuthenticationError" in told:
        return ": its token is another (set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH)"
    last = told.strip().rpartition("\n")[2].rpartition("] ")[2]
    return f" ({last[-200:]})" if last else ""


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set variables for us and for what we start; afterwards they are as before, also those that Ray sets itself."""
    ours = {name: value for name, value in os.environ.items() if name in settings or name.startswith("RAY_")}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in [name for name in os.environ if name in settings or name.startswith("RAY_")]:
            del os.environ[name]
        os.environ.update(ours)


@contextmanager
def _replaced(module: str, name: str, value: Any) -> Iterator[None]:
    """Give another value to a name of a module, for as long as the block takes."""
    found = import_module(module)
    before = getattr(found, name)
    setattr(found, name, value)
    try:
        yield
    finally:
        setattr(found, name, before)


def _loopback(wanted: bool) -> AbstractContextManager[None]:
    """Keep to the loopback address if `wanted`; Ray reads its own variable for that only when it is imported."""
    if not wanted:
        return nullcontext()
    return _replaced("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False)


@contextmanager
def _credentials() -> Iterator[None]:
    """Make Ray forget mode and token afterwards; else it would bring them to the next session of this process."""
    raylet = import_module("ray._raylet")
    try:
        yield
    finally:
        raylet.AuthenticationTokenLoader.instance().reset_cache()
        raylet.Config.initialize("")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray's notices off the terminal (it prints them as output), and give signals back afterwards."""
    logger, handler = logging.getLogger("ray"), signal.getsignal(signal.SIGTERM)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with _replaced("ray._private.worker", "print_to_stdstream", lambda *_, **__: None):
            yield
    finally:
        logger.setLevel(level)
        if handler is not None and threading.current_thread() is threading.main_thread():  # where Ray sets one, too
            signal.signal(signal.SIGTERM, handler)
