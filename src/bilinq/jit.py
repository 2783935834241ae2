"""How kernels are compiled: three decorators, so that flags stand in one place and types survive.

Numba keeps compiled kernels on disk but does not notice that a kernel in another file changed. So the folder they are kept
in is named after all files with kernels: any change in one gets a new folder, and the old ones are removed.
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
"""Floating point freedoms that let loops be vectorised; NaN and infinities keep their meaning."""


def kernel(function: F) -> F:
    """Compile with strict floating point."""
    return _compile(function)


def fast_kernel(function: F) -> F:
    """Compile with sums in any order."""
    return _compile(function, fastmath=REORDER)


def inlined_kernel(function: F) -> F:
    """Compile into the caller, with sums in any order: for helpers that run once per step of an inner loop."""
    return _compile(function, fastmath=REORDER, inline="always")


def _compile(function: F, **options: Any) -> F:
    before = SETTINGS.CACHE_DIR
    SETTINGS.CACHE_DIR = before or _folder()
    try:
        return cast(F, njit(cache=True, nogil=True, error_model="numpy", **options)(function))
    finally:
        SETTINGS.CACHE_DIR = before


@cache
def _folder() -> str:
    """Return the folder for the present kernels, or nothing (Numba's own choice) where the package is read-only."""
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
