"""Where a demo keeps its database and where it listens: on this computer only."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bilinq.errors import BadInput

FLEETS = ("gpus", "paper", "trace")
"""The fleets by name, also for those who do without NumPy."""
HOST = "127.0.0.1"
PORT = 8000
FIXED = ("config", "advertise", "reward_low", "reward_high", "rival_url", "rival_key")
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
    >>> beside(Path("demo-gpus.db"), "-rival.db").name
    'demo-gpus-rival.db'
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
