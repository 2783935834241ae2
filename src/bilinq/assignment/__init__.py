"""From an expected allocation to services in one slot: `assign`."""

from bilinq.assignment.assign import METHODS, assign

__all__ = ["METHODS", "assign"]
