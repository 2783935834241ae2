"""A scheduling problem: classes, features, rewards, loads; batches of problems; files; the best possible reward."""

from bilinq.problem.problem import Problem

__all__ = ["Problem"]
