"""`bilinq doctor`: what is installed, where kernels and jobs are stored, and what to do about problems."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

from bilinq.commands.shared import NOT_DONE, Database, Json, on_store, print_json
from bilinq.errors import BilinqError, did_you_mean
from bilinq.extras import EXTRAS, missing

if TYPE_CHECKING:
    from bilinq.live.settings import ServiceSettings

CORE = ("numpy", "scipy", "numba", "llvmlite", "msgspec", "typer", "rich")
ROOM = 200e6  # bytes that compiled kernels may need
OTHER_VARIABLES = ("KEY", "KEY_FILE", "URL", "CONFIG", "DATABASE_FILE", "BASELINE_KEY_FILE", "COMPLETE")
"""Ends of names of variables that are not settings."""


class Finding(NamedTuple):
    """One line of the report: `state` is ok, missing (of an optional part) or problem; `advice` says what to do."""

    area: str
    state: Literal["ok", "missing", "problem"]
    text: str
    advice: str = ""


def doctor(database: Database = None, json: Json = False) -> None:
    """Check the installation, and say what to do about problems.

    Reports versions, extras, the folder of compiled kernels, the database, the port and the environment. The exit code is
    1 if there is a problem. Missing extras are no problem.
    """
    found = list(_findings(database))
    bad = any(one.state == "problem" for one in found)
    if json:
        print_json({"ok": not bad, "findings": [one._asdict() for one in found]})
    else:
        for one in found:
            typer.echo(f"{one.state:<8} {one.area:<12} {one.text}{one.advice and f'; {one.advice}'}")
    if bad:
        raise typer.Exit(NOT_DONE)


def _findings(database: str | None) -> Iterator[Finding]:
    yield from _versions()
    yield from map(_extra, EXTRAS)
    yield _cache()
    yield from _environment()
    try:
        from bilinq.live.settings import load

        settings = load(options={"database": database})
    except BilinqError as error:
        yield Finding("settings", "problem", str(error))
        return
    yield _database(settings)
    yield _port(settings)


def _versions() -> Iterator[Finding]:
    import platform

    cores = f"{os.cpu_count()} cores"
    yield Finding(
        "bilinq", "ok", f"{_version('bilinq')}, Python {platform.python_version()}, {platform.platform()}, {cores}"
    )
    yield Finding("packages", "ok", ", ".join(f"{name} {_version(name)}" for name in CORE))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def _extra(extra: str) -> Finding:
    lacking = missing(extra)
    if lacking:
        return Finding(
            f"[{extra}]", "missing", f"{', '.join(lacking)} not installed", f"run: pip install 'bilinq[{extra}]'"
        )
    return Finding(f"[{extra}]", "ok", ", ".join(EXTRAS[extra]))


def _cache() -> Finding:
    """Check the folder of compiled kernels: it can be written, and has room."""
    import shutil

    from bilinq import jit

    folder = jit.cache_folder()
    if folder is None:
        advice = "set NUMBA_CACHE_DIR to a folder that this user can write"
        return Finding("kernels", "problem", "no folder for compiled kernels: each process compiles them again", advice)
    many = sum(1 for _ in folder.rglob("*.nbc"))
    free = shutil.disk_usage(folder).free
    if free < ROOM and not many:
        return Finding("kernels", "problem", f"{folder} has only {free / 1e6:.0f} MB of free space", "free some space")
    if not many:
        return Finding("kernels", "ok", f"not compiled yet, in {folder}", "run: bilinq warm, or wait at the first call")
    return Finding("kernels", "ok", f"{many} compiled, in {folder}")


def _environment() -> Iterator[Finding]:
    """Report variables that look like settings and are none."""
    from bilinq.live.settings import PREFIX, RENAMED, SETTINGS

    known = [f"{PREFIX}{name.upper()}" for name in (*SETTINGS, *RENAMED, *OTHER_VARIABLES)]
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            yield Finding(
                "environment", "problem", f"{name} is not a setting{did_you_mean(name, known)}", "unset or rename it"
            )


def _database(settings: ServiceSettings) -> Finding:
    from pathlib import Path

    from bilinq.live.keys import list_keys
    from bilinq.live.store import Store

    url = settings.database
    shown = url.partition("@")[2] or url  # the part before an @ may contain a password
    file = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None
    if file is not None and not file.exists():
        return Finding("database", "ok", f"{shown} does not exist yet", "bilinq serve creates it")

    async def count(store: Store) -> int:
        await store.start(wait=False)
        return len(await store.read(list_keys))

    try:
        return Finding("database", "ok", f"{shown} answers and has {on_store(url, count)} keys")
    except (BilinqError, ImportError) as error:
        return Finding("database", "problem", f"{shown}: {error}")


def _port(settings: ServiceSettings) -> Finding:
    import socket

    place = f"{settings.host}:{settings.port}"
    try:
        socket.create_server((settings.host, settings.port)).close()
        return Finding("port", "ok", f"{place} is free")
    except OSError as error:
        answer = _ready(f"http://{place}")
        if answer is None:
            return Finding("port", "problem", f"{place} cannot be used: {error.strerror}", "use another --port")
        return Finding("port", "ok", f"{place} is in use by a service of bilinq: {answer}")


def _ready(url: str) -> str | None:
    """Return what /readyz of a service answers, or None if there is no such service."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        with urlopen(f"{url}/readyz", timeout=2.0) as response:
            return _summary(response.read())
    except HTTPError as error:
        return _summary(error.read())
    except (OSError, HTTPException):
        return None


def _summary(body: bytes) -> str | None:
    """Return the status in the body of /readyz, or None if another program has written it."""
    import msgspec

    try:
        found = msgspec.json.decode(body)
        return str(found.get("status") or found["error"]["message"])
    except (ValueError, AttributeError, KeyError, TypeError):
        return None
