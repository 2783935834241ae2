"""Claims of the paper, what was measured about them, and the verdicts that follow from the numbers.

A claim states that some effect is in a range: below zero, above one half, between two numbers. It is tested under one or
more conditions. Under a condition it holds if the effect is inside the range and the test rejects that it is outside, it is
contradicted if the effect is outside and the test rejects that it is inside, and otherwise it is not decided. All tests of a
report are one family: by Holm's method the chance that any of them decides wrongly is at most 5 %.

Several seeds are pooled. A condition on which two seeds point to different sides is not decided, whatever the pooled number.
Where numbers are calculated, not sampled, no chance is involved: the seed that speaks most against the claim decides.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from typing import Any

from bilinq.display import number
from bilinq.lab import effects
from bilinq.lab.effects import Effect

ALPHA = 0.05  # chance that any verdict of a report is wrong, at most
ROUNDING = 1e-9


class Verdict(Enum):
    """The result of testing a claim."""

    HOLDS = "holds"
    CONDITIONAL = "holds only under stated conditions"
    UNDECIDED = "not decided"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True, slots=True)
class ClaimedRange:
    """The values of an effect for which a claim is true; build it with `below`, `above` or `between`."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Return whether the claim is true for this value."""
        return self.low <= value <= self.high

    def margin(self, value: float) -> float:
        """Return how far inside the range a value is, negative outside."""
        return min(value - self.low, self.high - value)

    def doubt(self, effect: Effect) -> float:
        """Return the p-value of the test that decides on which side of the range's ends the true value is."""
        if effect.exact:
            return 0.0
        if self.contains(effect.value):
            return max(effect.doubt(self.low), effect.doubt(self.high))
        return effect.doubt(self.low if effect.value < self.low else self.high)

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
    """A claim under one condition: what was measured, and for which values the claim is true.

    `adjusted` is the p-value after the correction for all tests of the report; before it, that of this test alone.
    `agreed` says whether all seeds are on the same side of the range's ends.
    """

    condition: str
    effect: Effect
    claimed: ClaimedRange
    adjusted: float | None = None
    agreed: bool = True

    @property
    def p(self) -> float:
        """The p-value of this test alone."""
        return self.claimed.doubt(self.effect)

    @property
    def verdict(self) -> Verdict:
        """The verdict under this condition."""
        p = self.p if self.adjusted is None else self.adjusted
        if math.isnan(self.effect.value) or p > ALPHA * (1.0 + ROUNDING) or not self.agreed:
            return Verdict.UNDECIDED
        return Verdict.HOLDS if self.claimed.contains(self.effect.value) else Verdict.CONTRADICTED


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
    ours : bool
        True for an observation of ours that the paper does not state; the report lists these apart.
    figure : str
        The name of the figure that tests it; set by the lab.
    seeds : tuple of (int, str)
        Seeds that were judged and the verdict of each of them alone, with its counts; set by the lab.
    """

    id: str
    where: str
    statement: str
    _: KW_ONLY
    test: str
    findings: tuple[Finding, ...]
    note: str = ""
    ours: bool = False
    figure: str = ""
    seeds: tuple[tuple[int, str], ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict over all conditions."""
        return overall(finding.verdict for finding in self.findings)

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many conditions have each verdict."""
        return Counter(finding.verdict for finding in self.findings)

    @property
    def result(self) -> str:
        """The verdict in words; with the number of conditions that hold, unless it is the same under all."""
        counts, all_ = self.counts, len(self.findings)
        if all_ in counts.values() or not all_:
            return self.verdict.value
        parts = [f"{counts[Verdict.HOLDS]} of {all_} hold"]
        parts += [f"{counts[v]} {v.value}" for v in (Verdict.CONTRADICTED, Verdict.UNDECIDED) if counts[v]]
        return f"{self.verdict.value}: {', '.join(parts)}"

    def document(self) -> dict[str, Any]:
        """Return the claim for programs."""
        return {
            "id": self.id, "where": self.where, "statement": self.statement, "figure": self.figure, "ours": self.ours,
            "test": self.test, "verdict": self.verdict.value, "result": self.result, "note": self.note,
            "seeds": {str(seed): result for seed, result in self.seeds},
            "findings": [_document(finding) for finding in self.findings],
        }  # fmt: skip


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Return one verdict for several conditions.

    A claim holds if it holds under all conditions, and is contradicted if it is contradicted under all. It holds
    conditionally if it holds under some and is contradicted under others. What else there is depends on conditions that
    are not decided, so it is not decided: more data could not turn any other verdict into its opposite.
    """
    found = set(verdicts)
    if {Verdict.HOLDS, Verdict.CONTRADICTED} <= found:
        return Verdict.CONDITIONAL
    return found.pop() if len(found) == 1 else Verdict.UNDECIDED


def corrected(claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Return the claims with p-values adjusted for all tests of all claims, by Holm's method; counted numbers need none."""
    tests = [finding for claim in claims for finding in claim.findings if not finding.effect.exact]
    adjusted = iter(holm([finding.p for finding in tests]))
    return tuple(
        replace(claim, findings=tuple(
            finding if finding.effect.exact else replace(finding, adjusted=next(adjusted)) for finding in claim.findings
        ))
        for claim in claims
    )  # fmt: skip


def holm(p: Sequence[float]) -> list[float]:
    """Return adjusted p-values: the error of rejecting all that are at most alpha is at most alpha.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    rank = sorted(range(len(p)), key=lambda k: p[k])
    adjusted, least = [1.0] * len(p), 0.0
    for place, k in enumerate(rank):
        least = max(least, min(1.0, (len(p) - place) * p[k]))
        adjusted[k] = least
    return adjusted


def over_seeds(judged: Mapping[int, Sequence[Claim]]) -> tuple[Claim, ...]:
    """Return the claims that several seeds judged, with pooled effects, and the verdict of each seed alone beside them."""
    alone = {seed: corrected(claims) for seed, claims in judged.items()}
    several = [_pooled(same) for same in zip(*judged.values(), strict=True)]
    seeds = [tuple((seed, claims[k].result) for seed, claims in alone.items()) for k in range(len(several))]
    return corrected([replace(claim, seeds=mine) for claim, mine in zip(several, seeds, strict=True)])


def _pooled(same: Sequence[Claim]) -> Claim:
    """Return one claim for the same claim of several seeds."""
    findings = []
    for parts in zip(*(claim.findings for claim in same), strict=True):
        first = parts[0]
        assert {part.condition for part in parts} == {first.condition}, "conditions must not depend on the seed"
        if all(part.effect.exact for part in parts):
            findings.append(min(parts, key=lambda part: part.claimed.margin(part.effect.value)))
            continue
        sides = {first.claimed.contains(part.effect.value) for part in parts}
        effect = effects.pooled([part.effect for part in parts])
        findings.append(replace(first, effect=effect, agreed=len(sides) == 1))
    return replace(same[0], findings=tuple(findings))


def _document(finding: Finding) -> dict[str, Any]:
    effect = finding.effect
    ends = {"value": effect.value, "low": effect.low, "high": effect.high}
    p = finding.p if finding.adjusted is None else finding.adjusted
    return {
        "condition": finding.condition, "effect": {name: float(f"{x:.6g}") for name, x in ends.items()},
        "unit": effect.unit, "claimed": str(finding.claimed), "p": float(f"{p:.2g}"), "verdict": finding.verdict.value,
    }  # fmt: skip
