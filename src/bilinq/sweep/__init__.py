"""Sweeps: every combination of policies and settings, on all cores, resumable; see `docs/howto-sweep.md`."""

from bilinq.sweep.chunks import run
from bilinq.sweep.plan import Cell, Sweep, load
from bilinq.sweep.results import Result

__all__ = ["Cell", "Result", "Sweep", "load", "run"]
