"""The figure of `bilinq distributed`: where small deviations grow, how rates settle, and the cost of a wrong gain."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bilinq import style
from bilinq.distributed import System, boundary, growth_rate, iterate
from bilinq.distributed.stability import measured_growth, settling_rounds
from bilinq.distributed.system import Nodes, Rule
from bilinq.errors import UnsafeGain
from bilinq.extras import optional_imports

with optional_imports():
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RULES: tuple[tuple[Rule, str], ...] = (("scaled", style.BLUE), ("printed", style.ORANGE))
MAPPED = np.array([0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0, 1.1, 1.25, 1.4, 1.6])
"""Fractions of the stability condition at which growth is measured."""
CURVES = ((0.25, style.SKY), (0.5, style.BLUE), (0.9, style.GREEN), (1.3, style.ORANGE))
WRONG = np.geomspace(0.02, 1.6, 22)


@dataclass(frozen=True)
class Growth:
    """Growth per round of several systems (systems, points), computed and measured."""

    computed: np.ndarray
    measured: np.ndarray


def mapped(systems: Sequence[System], rule: Rule, nodes: Nodes) -> Growth:
    """Return growth rates in units of the longest round trip and one round."""
    computed, measured = np.empty((2, len(systems), len(MAPPED)))
    for k, system in enumerate(systems):
        unit = 1.0 + float(system.round_trip.max())
        for m, part in enumerate(MAPPED):
            gain = system.safe_gain(part, "discrete")
            computed[k, m] = unit * growth_rate(system, gain, nodes=nodes, rule=rule, time="discrete")
            measured[k, m] = unit * measured_growth(system, gain, nodes=nodes, rule=rule)
    return Growth(computed, measured)


def draw(systems: Sequence[System], *, nodes: Nodes = "job", rounds: int = 4000) -> Figure:
    """Return the figure: the map over all `systems`, the rest for the first of them."""
    with style.applied():
        figure, axes = style.panels(1, 3, height=3.6)
        _map(axes[0], systems, nodes)
        _settling(axes[1], systems[0], nodes, min(rounds, 1200))
        _price(axes[2], systems[0], nodes, rounds)
        style.settle(figure)
    return figure


def _map(axes: Axes, systems: Sequence[System], nodes: Nodes) -> None:
    for rule, colour in RULES:
        growth = mapped(systems, rule, nodes)
        for k in range(len(systems)):
            axes.plot(MAPPED, growth.computed[k], color=colour, lw=1.0, alpha=0.6)
        axes.plot(MAPPED, growth.measured.T, ls="", marker="o", ms=2.6, color=colour)
        axes.plot([], [], color=colour, marker="o", ms=2.6, label=f"{rule} rule")
    axes.axhline(0.0, color=style.INK, lw=1.0)
    axes.axvline(1.0, color=style.GREY, lw=1.0, ls=style.DASHED)
    axes.legend(loc="lower right")
    axes.set_ylim(-1.6, 2.6)
    style.label(axes, "Stability map", "gain times delay, part of the condition", "growth per longest round trip")


def _settling(axes: Axes, system: System, nodes: Nodes, rounds: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeGain)
        for part, colour in CURVES:
            run = iterate(system, system.safe_gain(part, "discrete"), rounds, nodes=nodes, check=False)
            axes.plot(run.rounds, run.distance, color=colour, lw=1.6, label=f"{part:g}")
        run = iterate(system, system.safe_gain(0.9, "discrete"), rounds, nodes=nodes, rule="printed", check=False)
    axes.plot(run.rounds, run.distance, color=style.GREY, lw=1.0, label="0.9, printed")
    axes.set_yscale("log")
    axes.set_ylim(1e-3, 3e3)
    axes.legend(loc="upper right", ncols=2)
    style.label(axes, "Settling", "round", "distance to the fixed point")


def _price(axes: Axes, system: System, nodes: Nodes, rounds: int) -> None:
    for rule, colour in RULES:
        needed = [settling_rounds(system, system.safe_gain(part, "discrete"), nodes=nodes, rule=rule, rounds=rounds)
                  for part in WRONG]  # fmt: skip
        shown = [(part, number) for part, number in zip(WRONG, needed, strict=True) if number is not None]
        edge = float(boundary(system, system.safe_gain(1.0, "discrete"), nodes=nodes, rule=rule, time="discrete"))
        axes.plot(*zip(*shown, strict=True), color=colour, lw=1.6, marker="o", ms=3.2, label=f"{rule} rule")
        axes.axvline(edge, color=colour, lw=1.0, ls=style.DASHED)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(loc="upper right")
    style.label(axes, "Price of a wrong gain", "gain, part of the condition", "rounds to 1 % (dashed: true boundary)")
