"""The convex program that shares the servers: `allocate`."""

from bilinq.allocation.allocate import allocate
from bilinq.allocation.batch import Allocation

__all__ = ["Allocation", "allocate"]
