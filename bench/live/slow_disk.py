"""A slow disk below SQLite: its file system with pauses in writes and syncs."""

import _sqlite3
import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p, cast
from typing import Any

SYNC, PAGE = 1e-3, 1e-4
"""Seconds of a sync, and of the write of a page."""
Open = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
Write = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
Sync = CFUNCTYPE(c_int, c_void_p, c_int)


class Methods(Structure):
    """The functions of an open file, `sqlite3_io_methods`."""

    _fields_ = [
        ("version", c_int), ("close", c_void_p), ("read", c_void_p), ("write", c_void_p), ("truncate", c_void_p),
        ("sync", c_void_p), ("others", c_void_p * 13),
    ]  # fmt: skip


class Vfs(Structure):
    """The functions of a file system, `sqlite3_vfs`."""

    _fields_ = [
        ("version", c_int), ("size", c_int), ("longest", c_int), ("next", c_void_p), ("name", c_char_p),
        ("data", c_void_p), ("open", c_void_p), ("others", c_void_p * 15),
    ]  # fmt: skip


class SlowDisk:
    """A disk that writes pages as they come, or, if `queued`, all in the next sync, while nobody else is served.

    `syncs` counts.
    """

    def __init__(self, queued: bool) -> None:
        self.syncs, self._queued = 0, queued
        self._disk, self._written = threading.Lock(), Counter[int]()
        self._tables: dict[int, Methods] = {}
        self._kept: list[Any] = []  # what C has pointers to
        self._library = ctypes.CDLL(_sqlite3.__file__)  # the very library that Python uses
        self._library.sqlite3_vfs_find.restype = POINTER(Vfs)
        self._real = self._library.sqlite3_vfs_find(None)
        self._vfs = Vfs.from_buffer_copy(self._real.contents)
        self._vfs.name, self._vfs.next = b"slow", None
        self._vfs.open = self._pointer(Open, self._open(Open(self._real.contents.open)))

    def register(self) -> None:
        """Use this disk for all connections from now on."""
        self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1)

    def unregister(self) -> None:
        """Use SQLite's own file system again."""
        self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))
        self._library.sqlite3_vfs_register(self._real, 1)

    def _pointer(self, kind: Any, function: Callable[..., int]) -> Any:
        wrapped = kind(function)
        self._kept.append(wrapped)
        return cast(wrapped, c_void_p).value

    def _open(self, real: Any) -> Callable[..., int]:
        def open(vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
            code: int = real(vfs, name, file, flags, out)
            table = c_void_p.from_address(file)
            if code == 0 and table.value is not None:
                table.value = ctypes.addressof(self._wrapped(table.value))
            return code

        return open

    def _wrapped(self, table: int) -> Methods:
        """Return a table of functions with ours in place of some; SQLite has a few tables, for kinds of locks."""
        if table not in self._tables:
            real = Methods.from_address(table)
            ours = self._tables[table] = Methods.from_buffer_copy(real)
            ours.write = self._pointer(Write, self._write(Write(real.write)))
            ours.sync = self._pointer(Sync, self._sync(Sync(real.sync)))
        return self._tables[table]

    def _write(self, real: Any) -> Callable[..., int]:
        def write(file: int, data: int, size: int, offset: int) -> int:
            if self._queued:
                self._written[file] += 1
            else:
                time.sleep(PAGE)
            code: int = real(file, data, size, offset)
            return code

        return write

    def _sync(self, real: Any) -> Callable[..., int]:
        def sync(file: int, flags: int) -> int:
            self.syncs += 1
            with self._disk if self._queued else nullcontext():
                time.sleep(SYNC + PAGE * self._written.pop(file, 0))
                code: int = real(file, flags)
                return code

        return sync


@contextmanager
def slow_disk(*, queued: bool) -> Iterator[SlowDisk]:
    """Let all connections to SQLite that are opened meanwhile work on a slow disk; close them before the end."""
    disk = SlowDisk(queued)
    disk.register()
    try:
        yield disk
    finally:
        disk.unregister()
