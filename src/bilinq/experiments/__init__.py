"""Experiments: one engine that plans runs, computes them on processes or Ray, and stores their records.

The lab plans its runs itself; `sweep` plans those of a TOML file.
"""

from bilinq.experiments.record import Band, Record
from bilinq.experiments.run import PlannedRun, execute, load_run
from bilinq.experiments.settings import (
    Backlogged,
    Fixed,
    Logistic,
    LowRank,
    OtherRewards,
    Setting,
    SizedJobs,
    Synthetic,
    UnequalNoise,
    Unstructured,
)  # fmt: skip
from bilinq.experiments.workers import start_workers

__all__ = [
    "Backlogged", "Band", "Fixed", "Logistic", "LowRank", "OtherRewards", "PlannedRun", "Record", "Setting", "SizedJobs",
    "Synthetic", "UnequalNoise", "Unstructured", "execute", "load_run", "start_workers",
]  # fmt: skip
