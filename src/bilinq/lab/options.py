"""What a user may choose about a run of the lab, and nothing else that decides its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from bilinq.arrays import count, one_of
from bilinq.lab.presets import PRESETS, Preset
from bilinq.lab.runs import Run, Setting
from bilinq.policies import Policy

T = TypeVar("T")

FULL, QUICK = 100, 5
"""Replications unless given: of the full set, and of a quick look."""


@dataclass(frozen=True)
class Options:
    """The settings of a whole report.

    Parameters
    ----------
    preset : "published", "paper" or "calibrated"
        Whose settings the figures show; see `bilinq.lab.presets`. Claims are judged under all three, whatever is shown.
        The default is what the authors ran, since their figures and statements come from it.
    replications : int, optional
        Random instances behind every mean; 100 unless given, 5 in a quick look.
    quick : bool
        A look: fewer replications, and fewer points where a figure has many.
    seed : int
        The same seed gives the same bytes of data.
    """

    preset: str = "published"
    replications: int | None = None
    quick: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        one_of("preset", self.preset, tuple(PRESETS))
        count("seed", self.seed, least=0)
        if self.replications is not None:
            count("replications", self.replications)

    @property
    def count(self) -> int:
        """Number of replications."""
        return self.replications or self.pick(FULL, quick=QUICK)

    @property
    def shown(self) -> Preset:
        """The preset that figures show."""
        return PRESETS[self.preset]

    def pick(self, full: T, *, quick: T) -> T:
        """Return `quick` for a quick look and `full` otherwise."""
        return quick if self.quick else full

    def run(self, setting: Setting, policy: Policy, slots: int, *, by_class: bool = False) -> Run:
        """Return the run of a policy in a setting with these replications and this seed.

        Runs with the same setting meet the same problems and arrivals, so that their replications are pairs.
        """
        return Run(setting, policy, slots, self.count, self.seed, by_class)
