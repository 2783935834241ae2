"""How kernels are compiled: four decorators that keep the compiler flags in one place and the types of functions.

Numba stores compiled kernels on disk but does not notice when a kernel in another file changes. So the name of the folder
is a hash of all files with kernels: after any change there is a new folder, and the old ones are removed.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS: Any = numba.config

REORDER = {"reassoc", "contract", "arcp", "nsz"}
"""Floating point rules that may be relaxed to vectorise loops; NaN and infinities keep their meaning."""

COUNT_REFERENCES, NO_REFERENCES = {"_nrt": True}, {"_nrt": False}
"""Whether a kernel counts references to arrays: it must if it creates any, and in small kernels it takes time."""


def kernel(function: F) -> F:
    """Compile with strict floating point."""
    return _compile(function)


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
    before = SETTINGS.CACHE_DIR
    SETTINGS.CACHE_DIR = before or _folder()
    try:
        return cast(F, njit(cache=True, nogil=True, error_model="numpy", **options)(function))
    finally:
        SETTINGS.CACHE_DIR = before


@cache
def _folder() -> str:
    """Return the folder for the present kernels, or "" (Numba's own choice) if the package is read-only."""
    package = Path(__file__).parent
    if not os.access(package, os.W_OK):
        return ""
    digest = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        text = source.read_bytes()
        if b".jit import" in text:
            digest.update(text)
    folder = package / "__pycache__" / f"kernels-{digest.hexdigest()[:16]}"
    for old in folder.parent.glob("kernels-*"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    return str(folder)
