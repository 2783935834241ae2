"""The figures in the order of the report; one module each. To add one, write the module and put its class into `FIGURES`."""

from collections.abc import Sequence

from bilinq.arrays import one_of
from bilinq.lab.figure import Figure
from bilinq.lab.figures.assignment import Assignment
from bilinq.lab.figures.baseline import Baseline
from bilinq.lab.figures.bounds import Bounds
from bilinq.lab.figures.comparison import Comparison
from bilinq.lab.figures.features import Features
from bilinq.lab.figures.gpu import Gpu
from bilinq.lab.figures.load import Load
from bilinq.lab.figures.nodes import Nodes
from bilinq.lab.figures.radius import Radius
from bilinq.lab.figures.scaling import Scaling
from bilinq.lab.figures.trace_comparison import TraceComparison
from bilinq.lab.figures.trace_weights import TraceWeights
from bilinq.lab.figures.tradeoff import Tradeoff
from bilinq.lab.figures.weights import Weights
from bilinq.lab.figures.workload import Workload

FIGURES: tuple[type[Figure], ...] = (
    Comparison,
    Weights,
    Scaling,
    Load,
    Tradeoff,
    Bounds,
    Radius,
    Baseline,
    Assignment,
    Nodes,
    TraceComparison,
    TraceWeights,
    Workload,
    Features,
    Gpu,
)
"""All figures, in the order of the report."""


def find(wanted: Sequence[str | type[Figure]] | None = None) -> list[type[Figure]]:
    """Return the figures of these names in the order of the report, or all; then the figures given as classes."""
    known = {figure.name: figure for figure in FIGURES}
    names = list(known) if wanted is None else [one_of("figure", x, tuple(known)) for x in wanted if isinstance(x, str)]
    own = [figure for figure in wanted or () if not isinstance(figure, str)]
    return [figure for name, figure in known.items() if name in names] + own
