"""The effect of gains on a system: margins, growth rates and rounds to settle, for several gains side by side."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import count
from bilinq.distributed.network import Network
from bilinq.distributed.rounds import iterate
from bilinq.distributed.stability import growth_rate
from bilinq.distributed.system import Nodes, Rule, System
from bilinq.errors import BadInput, Diverged, UnsafeGain

FRACTIONS = (0.25, 0.5, 0.9, 1.0, 1.5)
"""Parts of the stability condition of rounds, Eq. (40), that a survey tries."""
NUDGE, LOST, LARGE = 1e-8, 1e-13, 1e-3
"""Relative deviation at which a measurement starts, and those at which it ends: rounding errors, or no longer linear."""


@dataclass(frozen=True)
class Trial:
    """One gain: the largest margins of any pair, growth per round, and rounds until Eq. (33) stays within 1 %.

    `growth` is missing where the system is too large for eigenvalues, `rounds` where rates did not settle.
    """

    fraction: float
    rule: str
    margin: float
    margin_rounds: float
    growth: float | None
    rounds: int | None


def survey(
    system: System,
    *,
    fractions: Sequence[float] = FRACTIONS,
    nodes: Nodes = "job",
    rules: Sequence[Rule] = ("scaled", "printed"),
    rounds: int = 4000,
) -> list[Trial]:
    """Return a trial of one system, from the usual start, for each rule and each part of what Eq. (40) allows."""
    if system.batch:
        raise BadInput(f"system must be a single one; got a batch {system.batch}")
    return [_trial(system, fraction, nodes, rule, rounds) for rule in rules for fraction in fractions]


def _trial(system: System, fraction: float, nodes: Nodes, rule: Rule, rounds: int) -> Trial:
    gain = system.safe_gain(fraction, "discrete")
    margin, margin_rounds = float(system.margin(gain).max()), float(system.margin(gain, "discrete").max())
    growth: float | None = None
    with suppress(BadInput):
        growth = float(growth_rate(system, gain, nodes=nodes, rule=rule, time="discrete"))
    settled = settling_rounds(system, gain, nodes=nodes, rule=rule, rounds=rounds)
    return Trial(
        fraction=fraction, rule=rule, margin=margin, margin_rounds=margin_rounds, growth=growth, rounds=settled
    )


def settling_rounds(
    system: System, gain: ArrayLike, *, nodes: Nodes = "job", rule: Rule = "scaled", rounds: int = 4000
) -> int | None:
    """Return the rounds until Eq. (33) stays within 1 %, or None if that takes more than `rounds`."""
    every = max(1, count("rounds", rounds) // 4000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsafeGain)
        try:
            needed = float(iterate(system, gain, rounds, nodes=nodes, rule=rule, record=every).settled())
        except Diverged:
            return None
    return int(needed) if np.isfinite(needed) else None


def measured_growth(
    system: System, gain: ArrayLike, *, nodes: Nodes = "job", rule: Rule = "scaled", rounds: int | None = None
) -> float:
    """Return the growth rate per round of a small deviation, measured on the rules, not on their linearisation."""
    best = system.fixed_point()
    signs = np.where(np.arange(best.size).reshape(best.shape) % 3 == 0, 1.0, -0.4)
    network = Network(system, gain, nodes=nodes, rule=rule, start=best * (1.0 + NUDGE * signs))
    memory = 2 * (1 + int(system.round_trip.max()))
    off: list[float] = []
    for _ in range(rounds or 80 * memory):
        network.step()
        off.append(float(np.abs(network.expected - best).max() / best.max()))
        if not LOST < off[-1] < LARGE and len(off) > 2 * memory:
            break
    size = np.log(np.convolve(np.square(off), np.ones(memory), "valid"))
    late = size[len(size) // 2 :]
    return float(0.5 * np.polyfit(np.arange(len(late)), late, 1)[0])
