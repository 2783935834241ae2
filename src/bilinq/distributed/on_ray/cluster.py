"""A Ray cluster to work on: one that is running already, or a private one that starts and ends with the work."""

import ipaddress
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from bilinq.errors import BadInput, BilinqError, Unreachable
from bilinq.extras import optional_imports

CONNECT_SECONDS = 4  # seconds that an address may take to accept a connection, and then to answer as Ray does
JOIN_SECONDS = 30.0
"""Seconds that a cluster which answers may take to accept a new process; Ray itself tries for minutes."""
OTHER_TOKEN = "the Ray cluster there expects another token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
REFUSALS = {
    "Failed to connect to GCS": "what answers there is not Ray",
    "InvalidAuthToken": OTHER_TOKEN,
    "AuthenticationError": OTHER_TOKEN,
}
"""What Ray writes while it tries in vain to join, and what that means."""
OBJECT_STORE_BYTES = 2**28  # bytes of shared memory for the objects of a private Ray
LONGEST_FOLDER = 30
"""The longest name of a temporary folder that leaves room for Ray's sockets, whose names have at most 107 bytes."""
JOIN_SCRIPT = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)"
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With this set to 0 Ray uses the loopback address instead of one that other machines can reach."""


@contextmanager
def joined(address: str | None = None, cpus: int | None = None) -> Iterator[Any]:
    """Yield the module `ray`, connected; what was started here ends with the block, what was running before stays.

    Parameters
    ----------
    address : str, optional
        Of a running cluster, as host:port, or "auto" for the one that `ray start` started or RAY_ADDRESS names.
        Default: a private Ray on this machine, with its files in a folder that only the user can open.
    cpus : int, optional
        Cores that a private Ray uses; default: all.

    Raises
    ------
    Unreachable
        If no cluster answers at the address; within ten seconds if nothing does or it is not Ray.
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
    """Return the module `ray`; raise an error that names what to install if it is missing."""
    with optional_imports():
        return import_module("ray")


@contextmanager
def _started(ray: Any, cpus: int | None) -> Iterator[None]:
    """Start a private Ray, reachable from this machine only, with its own token."""
    parent = None if len(tempfile.gettempdir()) < LONGEST_FOLDER else "/tmp"
    with tempfile.TemporaryDirectory(prefix="bilinq-", dir=parent, ignore_cleanup_errors=True) as folder:
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH"))))
        settings = {"RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": path}
        with _credentials(), _environment(settings), _loopback(wanted=True), _ended(ray):
            try:
                ray.init(
                    address="local", num_cpus=cpus, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False,
                    log_to_driver=False, configure_logging=False, _temp_dir=str(Path(folder, "ray")),
                )  # fmt: skip
            except (RuntimeError, OSError) as error:
                raise BilinqError(f"Ray does not start on this machine: {error}") from None
            yield


# A running cluster is tried out first: `ray.init` on a wrong address takes minutes, cannot be stopped and prints.


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    with _loopback(wanted=probe(address)), _ended(ray):
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (RuntimeError, OSError) as error:
            raise Unreachable(f"address {address}: {error}") from None
        yield


def probe(address: str) -> bool:
    """Let another process try to join; raise `Unreachable` if it cannot, else return whether the address is on loopback."""
    local = _listens(*_parts(address), address)
    environment = {"RAY_gcs_rpc_server_connect_timeout_s": str(CONNECT_SECONDS)} | os.environ
    environment |= {LOOPBACK: "0"} if local else {}
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-c", JOIN_SCRIPT, address]
        attempt = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            deadline, written = time.monotonic() + JOIN_SECONDS, ""
            while attempt.poll() is None and time.monotonic() < deadline and not _refusal(written):
                time.sleep(0.02)
                written = _read(output.fileno())
        finally:
            attempt.kill()
            attempt.wait()
        written = _read(output.fileno())
    if attempt.returncode:
        raise Unreachable(f"address {address}: {_refusal(written) or _last_line(written)}")
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


def _listens(host: str, port: int, address: str) -> bool:
    """Raise `Unreachable` if nothing accepts a connection; return whether the address is on the loopback."""
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=CONNECT_SECONDS) as connection:
            return ipaddress.ip_address(connection.getpeername()[0]).is_loopback
    except TimeoutError:
        raise Unreachable(f"address {address}: nothing answers there within {CONNECT_SECONDS} s") from None
    except OSError as error:
        raise Unreachable(f"address {address}: nothing answers there ({error})") from None


def _read(descriptor: int) -> str:
    return os.pread(descriptor, 2**16, 0).decode(errors="replace")


def _refusal(written: str) -> str:
    """Return why Ray cannot join, if it wrote so; else an empty text."""
    return next((reason for sign, reason in REFUSALS.items() if sign in written), "")


def _last_line(written: str) -> str:
    """Return what is known of an attempt that failed for another reason: the last line that Ray wrote."""
    last = written.strip().rpartition("\n")[2].rpartition("] ")[2]
    return "could not join the Ray cluster there" + (f" ({last[-200:]})" if last else "")


# Ray changes this process: environment, credentials, log level, signal handlers. Each is set back afterwards.


def _ended(ray: Any) -> ExitStack:
    """Disconnect at the end of the block, also if joining was interrupted; this ends a private Ray."""
    stack = ExitStack()
    stack.callback(ray.shutdown)
    return stack


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block; afterwards restore them, and those that Ray sets itself."""
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
    found = import_module(module)
    before = getattr(found, name)
    setattr(found, name, value)
    try:
        yield
    finally:
        setattr(found, name, before)


def _loopback(wanted: bool) -> AbstractContextManager[None]:
    """Use the loopback address if `wanted`; Ray reads the environment variable for this only at import."""
    return _replaced("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False) if wanted else nullcontext()


@contextmanager
def _credentials() -> Iterator[None]:
    """Make Ray forget authentication mode and token afterwards; otherwise this process's next session has them."""
    raylet = import_module("ray._raylet")
    try:
        yield
    finally:
        raylet.AuthenticationTokenLoader.instance().reset_cache()
        raylet.Config.initialize("")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray's notices out of the output, and restore the signal handler afterwards."""
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
