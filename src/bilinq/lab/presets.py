"""Presets: SABR and its baseline as the paper prints them, as the published code ran them, and calibrated.

| preset | SABR's radius | V | UGDA-OL's index |
| --- | --- | --- | --- |
| paper | Eq. (13) | least regret bound, Eq. (24) | per job, Eq. (19) |
| published | Eq. (14) | the public code's rule, Eq. (25) | per job as released, Eq. (20) |
| calibrated | Thompson sampling, Eq. (16) | sqrt(I T), Eq. (23) | per class pair, Eq. (18) |

The paper states that V minimises the regret bound, without a number: with the constants of its proof, V is 680 in the
synthetic experiment. All numbers come from `bilinq.theory`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from bilinq import theory
from bilinq.policies.fair import KnownRewards, Sabr, UgdaOl
from bilinq.problem import Problem

PRINTED: dict[str, Any] = {"assignment": "independent", "limit": "none"}  # servers draw jobs as the paper has it
POSTERIOR = 1.0  # scale of Thompson samples in the lab: the posterior itself, not the smaller one that users should run
COSTS = (7 / 4,) * 5 + (1 / 4,) * 5  # holding costs of the paper: the first half of the classes is expensive

Weight: TypeAlias = tuple[float, ...] | None
Rule: TypeAlias = Callable[[Problem, int, Weight], float]
"""A rule for V: from a problem, the number of slots and the weights."""


def least_bound(problem: Problem, slots: int, weight: Weight = None) -> float:
    """Return the V that minimises the regret bound; Eq. (24)."""
    return theory.V_minimiser(problem, slots, weight=weight)


def published(problem: Problem, slots: int, weight: Weight = None) -> float:
    """Return the V of the public code, which ignores the number of slots; Eq. (25)."""
    return theory.V_published(problem, weight=weight)


def order(problem: Problem, slots: int, weight: Weight = None) -> float:
    """Return sqrt(I T), which ignores the weights; Eq. (23)."""
    return theory.V_order(problem, slots)


def sabr(V: float, **settings: Any) -> Sabr:
    """Return SABR whose servers draw jobs as in the paper."""
    return Sabr(V=V, scale=POSTERIOR, **PRINTED, **settings)


def ugda(V: float, learning: Literal["job", "published", "class"]) -> UgdaOl:
    """Return the baseline, whose servers draw jobs as in the paper."""
    return UgdaOl(V=V, learning=learning, **PRINTED)


def known(V: float, weight: Weight = None) -> KnownRewards:
    """Return the reference that knows the rewards, whose servers draw jobs as in the paper."""
    return KnownRewards(V=V, weight=weight, **PRINTED)


@dataclass(frozen=True)
class Preset:
    """The settings of SABR, W-SABR and UGDA-OL.

    `text` and `detail` say what the name on the command line means: in a few words, and exactly. `radius` is SABR's
    confidence radius, or None for Thompson sampling; `learning` is how UGDA-OL keeps its indices.
    """

    name: str
    text: str
    detail: str
    V: Rule
    radius: Literal["paper", "published"] | None
    learning: Literal["job", "published", "class"]

    def sabr(self, V: float, weight: Weight = None) -> Sabr:
        """Return SABR, or W-SABR where weights are given."""
        return sabr(V, weight=weight, radius=self.radius)

    def ugda(self, V: float) -> UgdaOl:
        """Return the baseline."""
        return ugda(V, self.learning)


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "paper", "as the paper prints it",
            "the printed confidence radius; V at the least regret bound; UGDA-OL with an index for each job",
            least_bound, "paper", "job",
        ),
        Preset(
            "published", "as the published code ran it",
            "the smaller radius and the rule for V of the authors' public code; UGDA-OL as released there",
            published, "published", "published",
        ),
        Preset(
            "calibrated", "calibrated to the noise",
            "Thompson sampling with the true noise scale; V = sqrt(I T); UGDA-OL with an index for each pair of classes",
            order, None, "class",
        ),
    )
}  # fmt: skip

Fair = TypeVar("Fair", Sabr, KnownRewards, UgdaOl)


def serve_once(policy: Fair) -> Fair:
    """Return the policy with at most one server per job and slot: Eq. (30) and the cap of Eq. (5) at the queue.

    In the paper servers draw jobs independently, Eq. (29): two may serve the same job in a slot, and both are paid. Regret
    counts the second reward, which the oracle cannot have, and becomes negative.
    """
    return replace(policy, assignment="distinct", limit="queue")
