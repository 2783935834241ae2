"""What the lab simulates and keeps: a `Setting`, a `Run` in it, the `Record` of a run; `execute` makes them."""

from bilinq.lab.runs.chunks import execute, load_run
from bilinq.lab.runs.record import Band, Record
from bilinq.lab.runs.run import Run
from bilinq.lab.runs.setting import Setting, Synthetic

__all__ = ["Band", "Record", "Run", "Setting", "Synthetic", "execute", "load_run"]
