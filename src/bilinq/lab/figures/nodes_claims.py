"""What Section 4 says of nodes that compute the allocation, judged inside the scheduler."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bilinq.arrays import Array, IntArray
from bilinq.distributed import System, growth_rate
from bilinq.distributed.kinds import Rule, Time
from bilinq.lab import effects
from bilinq.lab.claims import Claim, Finding, above, below, between
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Records

LOST, LONGER, ALIKE = 10.0, 1.1, 0.05
"""Regret and queue up to which nodes stand in for the exact program, and how far alike queues differ; our choices."""

PART = 0.9
"""The part of the theorem's gains at which stability is judged."""

Condition: TypeAlias = tuple[str, str, str]
"""A text, the run it is about and the run to compare with."""


def reward(records: Records, conditions: Sequence[Condition], slots: int) -> Claim:
    """Judge whether nodes earn what the exact program earns."""
    findings = [
        Finding(text, effects.difference(*_pair(records, one, other, "regret"), "regret"), below(LOST))
        for text, one, other in conditions
    ]
    return Claim(
        "nodes-keep-the-reward", "Section 4",
        "Nodes that iterate with delayed messages can compute the allocation of each time step: the reward is kept.",
        f"SABR's regret with nodes less that with the exact program after {slots} slots; kept means less than {LOST:g} "
        "more, our choice.", tuple(findings),
        "The paper holds jobs and indices fixed while nodes iterate, and does not run them inside the scheduler.",
    )  # fmt: skip


def queue(records: Records, conditions: Sequence[Condition], slots: int) -> Claim:
    """Judge whether nodes keep the queue."""
    findings = [
        Finding(text, effects.ratio(*_pair(records, one, other, "queue"), "times the exact"), below(LONGER))
        for text, one, other in conditions
    ]
    return Claim(
        "nodes-keep-the-queue", "Section 4",
        "Nodes that iterate with delayed messages can compute the allocation of each time step: the queue stays as short.",
        f"SABR's time-average queue with nodes over that with the exact program, {slots} slots; as short means at most "
        f"{LONGER - 1:.0%} longer, our choice.", tuple(findings),
        "The paper assumes that rounds are fast against arrivals; where a message and its answer take several slots they "
        "are not. A soft price also keeps jobs from servers that are free, the more so the higher the load.",
    )  # fmt: skip


def steep(records: Records, cases: Mapping[str, tuple[str, str, str]]) -> Claim:
    """Judge the role of the penalty's power; cases name the runs with power 8, power 2 and the exact program."""
    return Claim(
        "steep-penalties-are-hard", "Section 4.3", "The larger the power of the penalty, the closer to a hard capacity.",
        "How far the mean queue is from the exact program's with power 2, less how far it is with power 8; no delay.",
        tuple(Finding(text, _closer(records, *names), above(0.0)) for text, names in cases.items()),
        "Steepness has its price: the gain must be smaller, so that rates need more rounds to settle.",
    )  # fmt: skip


def alike(records: Records, conditions: Sequence[Condition]) -> Claim:
    """Judge whether it matters which nodes compute."""
    findings = [
        Finding(
            text,
            effects.ratio(*_pair(records, one, other, "queue"), "times that of job nodes"),
            between(1.0 - ALIKE, 1.0 + ALIKE),
        )
        for text, one, other in conditions
    ]
    return Claim(
        "server-nodes-do-as-well", "Section 4.2", "The allocation can be computed by server nodes as well as by job nodes.",
        f"The queue with server nodes over that with job nodes; as well means within {ALIKE:.0%}, our choice.",
        tuple(findings),
    )  # fmt: skip


def stable(systems: int) -> Claim:
    """Judge the theorem's condition, for the update as printed and with the factor that its proof has."""
    rules: list[tuple[str, Rule, Time]] = [
        ("as printed", "printed", "continuous"),
        ("steps scaled by the rate, as in the proof", "scaled", "continuous"),
        ("steps scaled by the rate, in rounds", "scaled", "discrete"),
    ]
    drawn = [System.synthetic(seed=seed) for seed in range(systems)]
    findings = [
        Finding(text, effects.mean(_growth(drawn, rule, time), "growth a unit of time"), below(0.0))
        for text, rule, time in rules
    ]
    return Claim(
        "stable-under-the-condition", "Theorem 4.1",
        "If every gain times its round trip is below a constant, small deviations from the fixed point die out.",
        f"Growth rate of small deviations at {PART:g} of the theorem's gains, {systems} random 4 x 3 systems with delays of "
        "1 to 5.", tuple(findings),
        "The proof linearises an update whose steps are scaled by the rate itself; the printed one lacks the factor. The "
        "theorem is about continuous time; rounds need smaller gains, Eq. (40), which is what the nodes above use.",
    )  # fmt: skip


def _growth(systems: Sequence[System], rule: Rule, time: Time) -> Array:
    return np.array([growth_rate(system, system.safe_gain(PART), rule=rule, time=time) for system in systems])


def _pair(records: Records, one: str, other: str, measure: str) -> tuple[Array, Array]:
    return records[one].samples[measure], records[other].samples[measure]


def _closer(records: Records, one: str, other: str, exact: str) -> Effect:
    """Return how far the mean queue of `other` is from the exact one, less how far that of `one` is."""
    samples = [records[name].samples["queue"] for name in (one, other, exact)]

    def statistic(keep: IntArray) -> float:
        near, far, hard = (values[keep].mean() for values in samples)
        return float(abs(far - hard) - abs(near - hard))

    return effects.estimate(statistic, len(samples[0]), "jobs")
