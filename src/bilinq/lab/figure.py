"""A figure of the lab: what it simulates, draws and claims; options of a run of the lab."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias, TypeVar

from bilinq.arrays import count, one_of
from bilinq.experiments import PlannedRun, Record, Setting
from bilinq.experiments.record import Kept
from bilinq.lab.claims import Claim
from bilinq.lab.presets import PRESETS, Preset
from bilinq.lab.table import Table
from bilinq.policies import KnownRewards, Policy, Sabr, UgdaOl

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


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

    def run(self, setting: Setting, policy: Policy, slots: int, *, by_class: bool = False) -> PlannedRun:
        """Return the run of a policy in a setting with these replications and this seed.

        Runs with the same setting meet the same problems and arrivals, so that their replications are pairs.
        """
        keep: Kept = "class paths" if by_class else "paths"
        return PlannedRun(setting, policy, slots, self.count, self.seed, keep)


Fair = TypeVar("Fair", Sabr, KnownRewards, UgdaOl)


def once(policy: Fair) -> Fair:
    """Return the policy with at most one server per job and slot: Eq. (30) and the cap of Eq. (5) at the queue.

    As the paper has it, servers draw on their own, Eq. (29): two may serve the same job in a slot, and both are paid.
    Regret counts the second reward, which no oracle can have, and turns negative.
    """
    return replace(policy, assignment="distinct", limit="queue")


Records: TypeAlias = Mapping[str, Record]
"""The records of a figure's runs, by the names it gave them."""


@dataclass(frozen=True)
class Figure(ABC):
    """One figure of the report; each kind has a module in `bilinq.lab.figures` and a place in its list `FIGURES`.

    Attributes
    ----------
    name : str
        The word on the command line and in file names.
    title : str
        The heading in the report: a few words.
    where : str
        The figure or section of the paper it belongs to.
    options : Options
    """

    name: ClassVar[str]
    title: ClassVar[str]
    where: ClassVar[str]
    options: Options

    @abstractmethod
    def runs(self) -> dict[str, PlannedRun]:
        """Return the simulations that the figure needs, by name; make them with `self.options.run`."""

    @abstractmethod
    def table(self, records: Records) -> Table:
        """Return the numbers behind the drawing, all that it shows."""

    @abstractmethod
    def draw(self, table: Table) -> Drawing:
        """Draw the table, and nothing that is not in it; start with `style.panels`."""

    @abstractmethod
    def caption(self, table: Table) -> str:
        """Say in two or three sentences what to see, with the numbers of this run."""

    def claims(self, records: Records) -> list[Claim]:
        """Return the claims of the paper that these runs test; none unless overridden."""
        return []
