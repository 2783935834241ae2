"""A disk that keeps only what was synced: the real SQLite, with its writes and syncs counted, delayed, failed and torn.

SQLite reaches files through a table of functions, its VFS. Here those that open, write, truncate, sync and delete are
wrapped by Python functions; all others stay as they are. A power cut leaves the content at the last sync and, of each later
write, some sectors.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import sqlite3
from collections.abc import Callable, Iterator
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p, cast
from math import inf
from pathlib import Path
from typing import Any

from simulator.world import Process, World

SECTOR = 512
OK, FULL, BROKEN_WRITE, BROKEN_SYNC = 0, 13, 778, 1034  # codes of SQLite
STATEMENT, COMMIT = 1e-4, 3e-3  # most seconds that a statement takes, and a commit
WRITES = ("INSERT", "UPDATE", "WITH given")  # beginnings of statements that change something
NAME = b"bilinq-simulated"


class Image:
    """A file as it would be after a power cut: its synced content, and the writes since then."""

    def __init__(self, content: bytes = b"") -> None:
        self.durable = bytearray(content)
        self.pending: list[tuple[int, bytes | None]] = []  # None: truncate there

    def sync(self) -> None:
        """Make everything durable."""
        for offset, data in self.pending:
            _write(self.durable, offset, data)
        self.pending.clear()

    def content(self, keeps: Callable[[], bool] | None = None) -> bytes:
        """Return the content with those sectors of later writes that are kept, or with all of them."""
        found = bytearray(self.durable)
        for offset, data in self.pending:
            for start, part in [(offset, data)] if keeps is None or data is None else _sectors(offset, data):
                if keeps is None or keeps():
                    _write(found, start, part)
        return bytes(found)


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield a write in parts, none of which is in two sectors."""
    start = 0
    while start < len(data):
        end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
        yield offset + start, data[start:end]
        start = end


def _write(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class Disk:
    """The disk of one machine, in a folder. `full`, `broken`, `gone`, `slow` and `hung` are faults, false or zero at first.

    `slow` is the number of seconds that each statement takes longer, and until `hung` none begins. A trap springs after
    some more writes and syncs: the machine ends at that operation, and `cut` is what is left on the disk.
    """

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.random = world.random("disk")
        self.full, self.broken, self.gone = False, 0.0, False
        self.slow, self.hung = 0.0, 0.0
        self.images: dict[str, Image] = {}
        self.cut: dict[str, bytes] | None = None
        self.on_write: dict[Process, Callable[[], None]] = {}  # called once, in the next transaction that writes
        self.writes, self.syncs = 0, 0
        self._trap: tuple[int, float, Callable[[], None]] | None = None
        self._starts = 0

    def next_folder(self, left: dict[str, bytes]) -> Path:
        """Return a new folder with the files that are left of the last one: no lock or open file of a dead process."""
        self._starts += 1
        place = self.folder / str(self._starts)
        place.mkdir()
        self.images = {}
        self.cut, self._trap = None, None
        for name, content in left.items():
            (place / name).write_bytes(content)
            self.images[str(place / name)] = Image(content)
        return place

    def left(self, share: float) -> dict[str, bytes]:
        """Return what is left of the files now if of the sectors that are not synced a `share` is kept."""
        random = self.random
        keeps = None if share >= 1.0 else (lambda: random.random() < share)
        return {Path(path).name: image.content(keeps) for path, image in self.images.items()}

    def set_trap(self, operations: int, share: float, spring: Callable[[], None]) -> None:
        """Cut the power at a later write or sync, and call `spring`."""
        self._trap = (operations, share, spring)

    def disarm(self) -> None:
        """Remove the trap, and what was to happen in a transaction."""
        self._trap = None
        self.on_write.clear()

    def operate(self) -> None:
        """Count a write or sync, before it happens."""
        if self._trap is not None and self.cut is None:
            left, share, spring = self._trap
            self._trap = (left - 1, share, spring)
            if left <= 0:
                self.cut = self.left(share)
                spring()

    def write(self, path: str, offset: int, data: bytes | None) -> int:
        """Note a write; return SQLite's code."""
        self.operate()
        if self.full and data is not None:
            return FULL
        if self.broken and self.random.random() < self.broken:
            return BROKEN_WRITE
        self.writes += 1
        self.images[path].pending.append((offset, data))
        return OK

    def sync(self, path: str) -> int:
        """Note a sync; if it fails, what was written before may never reach the disk."""
        self.operate()
        if self.broken and self.random.random() < self.broken:
            return BROKEN_SYNC
        self.syncs += 1
        self.images[path].sync()
        return OK

    def delay(self, process: Process, sql: str) -> None:
        """Let a statement take some time; raise if the disk is gone."""
        if self.hung > self.world.now:
            self.world.pause(self.hung - self.world.now)
        longest = COMMIT if sql == "COMMIT" else STATEMENT
        self.world.pause(self.slow + process.random.uniform(0.0, longest))
        if self.gone:
            raise _error("disk I/O error", sqlite3.SQLITE_IOERR)


def _error(message: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return error


class Connection(sqlite3.Connection):
    """A connection whose statements take time; other threads run before and after each of them."""

    disk: Disk

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        disk = self.disk
        disk.delay(disk.world.process, sql)
        try:
            return super().execute(sql, parameters)
        finally:
            if disk.cut is not None:
                disk.world.pause(inf)  # the machine has ended meanwhile
            if disk.on_write and sql.startswith(WRITES) and (act := disk.on_write.pop(disk.world.process, None)):
                act()
                disk.world.pause(0.0)


Write = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
Truncate = CFUNCTYPE(c_int, c_void_p, c_int64)
Sync = CFUNCTYPE(c_int, c_void_p, c_int)
Open = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)  # the name as a pointer, since SQLite keeps it
Delete = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)


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
        ("data", c_void_p), ("open", c_void_p), ("delete", c_void_p), ("others", c_void_p * 14),
    ]  # fmt: skip


class FileSystem:
    """SQLite's own file system with `Disk` in between, registered under `NAME`; there is one for all simulations."""

    def __init__(self) -> None:
        self.disk: Disk | None = None
        self._paths: dict[int, str] = {}
        self._tables: dict[int, Methods] = {}
        self._kept: list[Any] = []  # what C has pointers to
        library = ctypes.CDLL(_sqlite3.__file__)  # finds the functions of the very library that Python uses
        library.sqlite3_vfs_find.restype = POINTER(Vfs)
        real = library.sqlite3_vfs_find(None).contents
        self._vfs = Vfs.from_buffer_copy(real)
        self._vfs.name, self._vfs.next = NAME, None
        self._vfs.open = self._pointer(Open, self._open(Open(real.open)))
        self._vfs.delete = self._pointer(Delete, self._delete(Delete(real.delete)))
        library.sqlite3_vfs_register(ctypes.byref(self._vfs), 0)

    def _pointer(self, kind: Any, function: Callable[..., int]) -> Any:
        wrapped = kind(function)
        self._kept.append(wrapped)
        return cast(wrapped, c_void_p).value

    def _open(self, real: Any) -> Callable[..., int]:
        def open(vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
            code: int = real(vfs, name, file, flags, out)
            if code == OK and name is not None and self.disk is not None:
                path = ctypes.string_at(name).decode()
                self._paths[file] = path
                self.disk.images.setdefault(path, Image())
                table = c_void_p.from_address(file)
                assert table.value is not None
                table.value = ctypes.addressof(self._wrapped(table.value))
            return code

        return open

    def _delete(self, real: Any) -> Callable[..., int]:
        def delete(vfs: int, name: int, synced: int) -> int:
            if self.disk is not None:
                self.disk.images.pop(ctypes.string_at(name).decode(), None)
            code: int = real(vfs, name, synced)
            return code

        return delete

    def _wrapped(self, table: int) -> Methods:
        """Return a table of functions with ours in place of some; SQLite has a few tables, for kinds of locks."""
        if table not in self._tables:
            real = Methods.from_address(table)
            ours = self._tables[table] = Methods.from_buffer_copy(real)
            ours.write = self._pointer(Write, self._write(Write(real.write)))
            ours.truncate = self._pointer(Truncate, self._truncate(Truncate(real.truncate)))
            ours.sync = self._pointer(Sync, self._sync(Sync(real.sync)))
        return self._tables[table]

    def _write(self, real: Any) -> Callable[..., int]:
        def write(file: int, data: int, size: int, offset: int) -> int:
            disk, path = self._place(file)
            code = OK if disk is None else disk.write(path, offset, ctypes.string_at(data, size))
            return code or real(file, data, size, offset)

        return write

    def _truncate(self, real: Any) -> Callable[..., int]:
        def truncate(file: int, size: int) -> int:
            disk, path = self._place(file)
            code = OK if disk is None else disk.write(path, size, None)
            return code or real(file, size)

        return truncate

    def _sync(self, real: Any) -> Callable[..., int]:
        def sync(file: int, flags: int) -> int:
            disk, path = self._place(file)
            return OK if disk is None else disk.sync(path)  # the real file need not reach a real disk

        return sync

    def _place(self, file: int) -> tuple[Disk | None, str]:
        """Return the disk and the path of an open file; no disk if the file is one of a dead process."""
        path = self._paths[file]
        return (self.disk if self.disk is not None and path in self.disk.images else None), path


_file_system: FileSystem | None = None


def connector(disk: Disk) -> Callable[..., sqlite3.Connection]:
    """Return a function like `sqlite3.connect` for files on a disk."""
    global _file_system
    _file_system = _file_system or FileSystem()
    _file_system.disk = disk

    def connect(database: str, **options: Any) -> sqlite3.Connection:
        disk.delay(disk.world.process, "open")
        options |= {"timeout": 0.0, "factory": Connection}  # who waits for a lock would stop the whole world
        connection = sqlite3.connect(f"{database}&vfs={NAME.decode()}", **options)
        assert isinstance(connection, Connection)
        connection.disk = disk
        disk.world.process.on_kill.append(connection.close)
        return connection

    return connect
