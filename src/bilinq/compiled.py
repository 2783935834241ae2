"""How kernels are compiled: three decorators, so that flags stand in one place and types survive."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

REORDER = {"reassoc", "contract", "arcp", "nsz"}
"""Floating point freedoms that let loops be vectorised; NaN and infinities keep their meaning."""


def kernel(function: F) -> F:
    """Compile with strict floating point."""
    return cast(F, njit(cache=True, nogil=True, error_model="numpy")(function))


def fast_kernel(function: F) -> F:
    """Compile with sums in any order."""
    return cast(F, njit(cache=True, nogil=True, error_model="numpy", fastmath=REORDER)(function))


def inlined_kernel(function: F) -> F:
    """Compile into the caller, with sums in any order: for helpers that run once per step of an inner loop."""
    return cast(F, njit(cache=True, nogil=True, error_model="numpy", fastmath=REORDER, inline="always")(function))
