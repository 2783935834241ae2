"""Sweeps: every combination of policies and settings, on all cores, resumable; see `docs/howto-sweep.md`."""

from bilinq.experiments.chunks import run
from bilinq.experiments.plan import Cell, Sweep, load
from bilinq.experiments.results import Result

__all__ = ["Cell", "Result", "Sweep", "load", "run"]
