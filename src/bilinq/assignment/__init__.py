"""From an expected allocation to who serves whom in one slot."""

from bilinq.assignment.assign import METHODS, assign

__all__ = ["METHODS", "assign"]
