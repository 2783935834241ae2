"""Claims of the paper, what was measured about them, and the verdicts that follow from the numbers.

A claim states that some effect is in a range: below zero, above one half, between two numbers. It is tested under one or
more conditions. Under a condition it holds if the whole 95 % interval of the effect is inside the range, it is contradicted
if the whole interval is outside, and otherwise it is not supported.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any

from bilinq.lab.effects import Effect, number


class Verdict(Enum):
    """The result of testing a claim."""

    HOLDS = "holds"
    CONDITIONAL = "holds only under stated conditions"
    UNSUPPORTED = "not supported at these settings"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True)
class ClaimedRange:
    """The values of an effect for which a claim is true; build it with `below`, `above` or `between`."""

    low: float
    high: float

    def judge(self, effect: Effect) -> Verdict:
        """Return the verdict: is the whole interval of the effect inside, outside, or neither? No interval is neither."""
        if math.isnan(effect.low) or math.isnan(effect.high):
            return Verdict.UNSUPPORTED
        if self.low <= effect.low and effect.high <= self.high:
            return Verdict.HOLDS
        if effect.high < self.low or effect.low > self.high:
            return Verdict.CONTRADICTED
        return Verdict.UNSUPPORTED

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"below {number(self.high)}"
        if math.isinf(self.high):
            return f"above {number(self.low)}"
        return f"between {number(self.low)} and {number(self.high)}"


def below(high: float) -> ClaimedRange:
    """Return the range below `high`."""
    return ClaimedRange(-math.inf, high)


def above(low: float) -> ClaimedRange:
    """Return the range above `low`."""
    return ClaimedRange(low, math.inf)


def between(low: float, high: float) -> ClaimedRange:
    """Return the range between two numbers, for "similar" and "equal" with a stated margin."""
    return ClaimedRange(low, high)


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim under one condition: what was measured, and for which values the claim is true."""

    condition: str
    effect: Effect
    claimed: ClaimedRange

    @property
    def verdict(self) -> Verdict:
        """The verdict under this condition."""
        return self.claimed.judge(self.effect)


def judged(found: Mapping[str, Effect], claimed: ClaimedRange) -> tuple[Finding, ...]:
    """Return a finding for each condition, all with the same claimed range."""
    return tuple(Finding(condition, effect, claimed) for condition, effect in found.items())


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and its test.

    Attributes
    ----------
    id : str
        A short name that does not change: words and hyphens.
    where : str
        The place in the paper.
    statement : str
        The statement of the paper, in our own words.
    test : str
        The experiment and the effect that test it, including any margin.
    findings : tuple of Finding
        One for each condition; the verdict on the claim follows from their verdicts.
    note : str
        What a reader should know to understand the result.
    figure : str
        The name of the figure that tests it; set by the lab.
    """

    id: str
    where: str
    statement: str
    _: KW_ONLY
    test: str
    findings: tuple[Finding, ...]
    note: str = ""
    figure: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict over all conditions."""
        return overall(finding.verdict for finding in self.findings)

    def document(self) -> dict[str, Any]:
        """Return the claim for programs."""
        return {
            "id": self.id, "where": self.where, "statement": self.statement, "figure": self.figure,
            "test": self.test, "verdict": self.verdict.value, "note": self.note,
            "findings": [_document(finding) for finding in self.findings],
        }  # fmt: skip


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Return one verdict for several conditions.

    A claim holds if it holds under all conditions, and conditionally if it holds under some. It is contradicted if it is
    contradicted under all. In every other case it is not supported.
    """
    found = set(verdicts)
    if len(found) == 1:
        return found.pop()
    return Verdict.CONDITIONAL if Verdict.HOLDS in found else Verdict.UNSUPPORTED


def _document(finding: Finding) -> dict[str, Any]:
    effect = finding.effect
    ends = {"value": effect.value, "low": effect.low, "high": effect.high}
    return {
        "condition": finding.condition, "effect": {name: float(f"{x:.6g}") for name, x in ends.items()},
        "unit": effect.unit, "claimed": str(finding.claimed), "verdict": finding.verdict.value,
    }  # fmt: skip
