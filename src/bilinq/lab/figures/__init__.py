"""The figures in the order of the report, one module each. To add one, write its module and add its class to `FIGURES`."""

from collections.abc import Sequence

from bilinq.arrays import one_of
from bilinq.extras import optional_imports
from bilinq.lab.figure import Figure

with optional_imports():
    from bilinq.lab.figures.assignment import AssignmentFigure
    from bilinq.lab.figures.baseline import BaselineFigure
    from bilinq.lab.figures.bounds import BoundsFigure
    from bilinq.lab.figures.comparison import ComparisonFigure
    from bilinq.lab.figures.exploration import ExplorationFigure
    from bilinq.lab.figures.features import FeaturesFigure
    from bilinq.lab.figures.general import GeneralFigure
    from bilinq.lab.figures.gpu import GpuFigure
    from bilinq.lab.figures.heavy_traffic import HeavyTrafficFigure
    from bilinq.lab.figures.load import LoadFigure
    from bilinq.lab.figures.nodes import NodesFigure
    from bilinq.lab.figures.noise import NoiseFigure
    from bilinq.lab.figures.policies import PoliciesFigure
    from bilinq.lab.figures.radius import RadiusFigure
    from bilinq.lab.figures.scaling import ScalingFigure
    from bilinq.lab.figures.service import ServiceFigure
    from bilinq.lab.figures.trace_comparison import TraceComparisonFigure
    from bilinq.lab.figures.trace_sweep import TraceSweepFigure
    from bilinq.lab.figures.trace_weights import TraceWeightsFigure
    from bilinq.lab.figures.tradeoff import TradeoffFigure
    from bilinq.lab.figures.weights import WeightsFigure
    from bilinq.lab.figures.workload import WorkloadFigure

FIGURES: tuple[type[Figure], ...] = (
    ComparisonFigure, WeightsFigure, ScalingFigure, LoadFigure, HeavyTrafficFigure, TradeoffFigure, BoundsFigure,
    RadiusFigure, ExplorationFigure, NoiseFigure, BaselineFigure, PoliciesFigure, AssignmentFigure, GeneralFigure,
    ServiceFigure,
    NodesFigure, TraceComparisonFigure, TraceSweepFigure, TraceWeightsFigure, WorkloadFigure, FeaturesFigure, GpuFigure,
)  # fmt: skip
"""All figures, in the order of the report."""


def find(wanted: Sequence[str | type[Figure]] | None = None) -> list[type[Figure]]:
    """Return the figures with these names (default: all) in the order of the report, then those given as classes."""
    known = {figure.name: figure for figure in FIGURES}
    names = list(known) if wanted is None else [one_of("figure", x, tuple(known)) for x in wanted if isinstance(x, str)]
    own = [figure for figure in wanted or () if not isinstance(figure, str)]
    return [figure for name, figure in known.items() if name in names] + own
