"""What a figure of the lab is: runs, the table of their numbers, a drawing of the table, a caption, and claims."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from bilinq.lab.claims import Claim
from bilinq.lab.options import Options
from bilinq.lab.runs import Record, Run
from bilinq.lab.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

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
    def runs(self) -> dict[str, Run]:
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
