"""How kernels are compiled and kept: six decorators, the folder of compiled kernels, and what users read meanwhile.

Numba stores compiled kernels on disk but does not notice when a kernel in another file changes. So the name of the folder
is a hash of all files with kernels: after any change there is a new folder, and the old ones are removed. A kernel is
compiled when it is first called; one process compiles while others with the same folder wait for what it stores.
"""

import hashlib
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, TypeVar, cast

import numba
from numba import njit
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.types import unliteral

from bilinq.linking import put_together

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS: Any = numba.config
STORED: Any = FunctionCache
fcntl: Any = import_module("fcntl") if os.name == "posix" else None
log = logging.getLogger("bilinq.jit")

REORDER = {"reassoc", "contract", "arcp", "nsz"}
"""Floating point rules that may be relaxed to vectorise loops; NaN and infinities keep their meaning."""

COUNT_REFERENCES, NO_REFERENCES = {"_nrt": True}, {"_nrt": False}
"""Whether a kernel counts references to arrays: it must if it creates any, and in small kernels it takes time."""

MANY = 5  # kernels from which compiling takes long enough for a message
EVERY = 10.0  # seconds between two messages, except on a terminal, where one line changes


def kernel(function: F) -> F:
    """Compile with strict floating point."""
    return _compile(function)


def bare_kernel(function: F) -> F:
    """Compile with strict floating point and without reference counts: for functions that create no arrays."""
    return _compile(function, **NO_REFERENCES)


def part_kernel(function: F) -> F:
    """Compile as a piece of the text of its callers, with strict floating point: large functions of few callers."""
    return _compile(function, inline="always")


def fast_kernel(function: F) -> F:
    """Compile with sums in any order."""
    return _compile(function, fastmath=REORDER)


def in_place_kernel(function: F) -> F:
    """Compile with sums in any order and without reference counts: for functions that create no arrays."""
    return _compile(function, fastmath=REORDER, **NO_REFERENCES)


def inlined_kernel(function: F) -> F:
    """Compile into the caller, like `in_place_kernel`: for functions that run once per step of an inner loop."""
    return _compile(function, fastmath=REORDER, forceinline=True, **NO_REFERENCES)


def _compile(function: F, **options: Any) -> F:
    options = COUNT_REFERENCES | options  # otherwise a function inherits this flag from the first that calls it
    options |= {"no_cfunc_wrapper": True}  # which nobody calls, and which would contain a second copy of the kernel
    made = _version(function, KernelLocator, options)
    if made is not function:  # as with NUMBA_DISABLE_JIT
        inner = cache(partial(_version, function, InnerLocator, options | {"no_cpython_wrapper": True}))
        made.get_call_template = lambda types, named: inner().get_call_template(tuple(map(unliteral, types)), named)
        made.get_overload = lambda *types: inner().get_overload(*types)
    return cast(F, made)


def _version(function: Callable[..., Any], locator: type["KernelLocator"], options: dict[str, Any]) -> Any:
    """Return the function for Numba to compile: for calls from Python, or, by `InnerLocator`, for calls by other kernels.

    The latter needs no code that converts arguments, which takes half of the time to compile a small kernel.
    """
    made: Any = njit(nogil=True, error_model="numpy", **options)(function)
    if made is not function:
        made.compile = partial(_compile_and_report, made, made.compile)
        if cache_folder() is not None:
            made._cache = KernelCache(function, locator)
    return made


@cache
def cache_folder() -> Path | None:
    """Return the folder of compiled kernels: the first that has some or can be written; None if there is none.

    Candidates are NUMBA_CACHE_DIR, the package, and the cache folder of the user.
    """
    name = f"kernels-{_digest()}"
    package = Path(__file__).parent / "__pycache__"
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "bilinq"
    for place in ([Path(SETTINGS.CACHE_DIR)] if SETTINGS.CACHE_DIR else []) + [package, user]:
        folder = place / name
        if _writable(folder):
            for old in place.glob("kernels-*") if place == package else ():
                if old != folder:
                    shutil.rmtree(old, ignore_errors=True)
            return folder
        if any(folder.rglob("*.nbc")):
            return folder
    log.warning("no folder for compiled kernels can be written, so each process compiles them; set NUMBA_CACHE_DIR")
    return None


def _digest() -> str:
    """Return a hash of all files with kernels, and of those that compile them."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        text = source.read_bytes()
        if b".jit import" in text or source.name in ("jit.py", "linking.py"):
            digest.update(text)
    return digest.hexdigest()[:16]


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


class KernelLocator:
    """Tells Numba where a kernel is stored: by its package, file, name and line, in a folder that stands for all sources."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        folder = cache_folder()
        assert folder is not None
        self._path = folder / (Path(file).parent.relative_to(Path(__file__).parent))
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "KernelLocator":
        """Return the place of a kernel."""
        return cls(function, file)

    def ensure_cache_path(self) -> None:
        """Create the folder."""
        self._path.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(self._path)

    def get_source_stamp(self) -> str:
        """Return nothing: the name of the folder changes with the sources."""
        return ""

    def get_disambiguator(self) -> str:
        """Return what tells kernels of the same name apart."""
        return str(self._line)


class InnerLocator(KernelLocator):
    """The same for the version that other kernels call."""

    def get_disambiguator(self) -> str:
        return f"{self._line}-inner"


class KernelCache:
    """Stored versions of a kernel, as Numba asks for them. A disk that is full or read-only costs time, not the result."""

    told = False  # whether the user has read that kernels cannot be stored

    def __init__(self, function: Callable[..., Any], locator: type[KernelLocator]) -> None:
        before = SETTINGS.CACHE_LOCATOR_CLASSES
        SETTINGS.CACHE_LOCATOR_CLASSES = f"{__name__}.{locator.__name__}"
        try:
            self._files = STORED(function)
        finally:
            SETTINGS.CACHE_LOCATOR_CLASSES = before
        self.cache_path = self._files.cache_path

    def load_overload(self, sig: Any, target: Any) -> Any:
        """Return a stored version, or None if the kernel must be compiled now."""
        found = self._load(sig, target)
        if found is None and WORK.begin():
            found = self._load(sig, target)  # another process may have stored it in the meantime
        return found

    def _load(self, sig: Any, target: Any) -> Any:
        try:
            return self._files.load_overload(sig, target)
        except OSError:
            return None
        except (EOFError, ValueError, UnpicklingError):  # what is damaged is compiled again
            with suppress(OSError):
                self._files.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a version."""
        try:
            self._files.save_overload(sig, data)
        except OSError as error:
            if not KernelCache.told:
                log.warning("compiled kernels cannot be stored in %s: %s", self.cache_path, error.strerror)
            KernelCache.told = True


class Work:
    """What is being compiled: from the call of a kernel that is not compiled yet until it and all that it calls are."""

    def __init__(self) -> None:
        self._outer: Any = None
        self._lock: IO[str] | None = None
        self._done: set[Any] = set()
        self._before, self._total, self._due = 0, 0, 0.0  # kernels of earlier calls, and of this one
        self.text: str | None = None

    @contextmanager
    def on(self, dispatcher: Any) -> Iterator[None]:
        """Count a kernel that is loaded or compiled; the first one contains the others."""
        outer = self._outer is None
        if outer:
            self._outer, self._done, self._total = dispatcher, set(), 0
        try:
            yield
        finally:
            self._done.add(dispatcher)
            if outer:
                self._outer = None
                self._before += self._total if self._total >= MANY else 0
                self._end()

    def begin(self) -> bool:
        """Report that a kernel must be compiled; return whether this process had to wait for another one first."""
        waited = False
        if self._total == 0:
            self._total = len(_called(self._outer))
            waited = self._wait()
        if self._total >= MANY:
            shown, total = self._before + min(len(self._done) + 1, self._total), self._before + self._total
            self.text = f"compiling kernels for this machine, {shown} of {total}; this happens only once"
            self._report()
        return waited

    def _wait(self) -> bool:
        """Wait while another process compiles; return whether there was one."""
        folder = cache_folder()
        if fcntl is None or folder is None:
            return False
        with suppress(OSError):  # a folder that cannot be written, or a file system without locks
            self._lock = (folder / "lock").open("w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.text = "waiting for another process that compiles kernels"
                self._report()
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                return True
        return False

    def _report(self) -> None:
        """Show how far it is: in the log if there is one, else on standard error."""
        now, terminal = time.monotonic(), _on_terminal()
        if now < self._due and not terminal:
            return
        self._due = now + EVERY
        if logging.getLogger("bilinq").hasHandlers():
            log.info(self.text)
        elif sys.stderr is not None:
            print(f"\r\x1b[Kbilinq: {self.text}" if terminal else f"bilinq: {self.text}", end="" if terminal else "\n",
                  file=sys.stderr, flush=True)  # fmt: skip

    def _end(self) -> None:
        if self.text is not None and _on_terminal():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self.text = None
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # also if a child process has inherited the file
            self._lock.close()
            self._lock = None


WORK = Work()


def compiling() -> str | None:
    """Return what is being compiled in this process and how far it is, or None."""
    return WORK.text


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and not logging.getLogger("bilinq").hasHandlers()


def _compile_and_report(dispatcher: Any, compile: Callable[[Any], Any], sig: Any) -> Any:
    with global_compiler_lock, WORK.on(dispatcher), put_together():
        return compile(sig)


def _called(dispatcher: Any) -> set[Any]:
    """Return a kernel and all kernels that it calls, directly or not."""
    found, left = {dispatcher}, [dispatcher]
    while left:
        function = left.pop().py_func
        names = (function.__globals__.get(name) for name in function.__code__.co_names)
        new = {one for one in names if isinstance(one, Dispatcher)} - found
        found |= new
        left += new
    return found
