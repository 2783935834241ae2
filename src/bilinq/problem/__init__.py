"""Scheduling problems: classes, features, rewards and loads; files; batches; and the oracle."""

from bilinq.problem.problem import Problem

__all__ = ["Problem"]
