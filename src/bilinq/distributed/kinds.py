"""The words that say who computes, by which rule, and how time passes."""

from typing import Literal

Nodes = Literal["job", "server"]
"""Job nodes set the rates of their class, Eq. (35), or server nodes those of theirs, Eq. (36)."""
Rule = Literal["scaled", "delayed", "printed"]
"""A step is scaled by the rate, by the rate that the answer belongs to, or not at all (as the paper prints it)."""
Time = Literal["continuous", "discrete"]
"""Differential equations with real delays, or rounds."""
