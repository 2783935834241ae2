"""The convex program that shares the servers: `allocate`."""

from bilinq.allocation.allocate import Allocation, allocate

__all__ = ["Allocation", "allocate"]
