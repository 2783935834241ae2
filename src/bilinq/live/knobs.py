"""What people turn at a running scheduler, and the policy that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bilinq.errors import BadInput
from bilinq.policies import Sabr

Exploration = Literal["thompson", "ucb", "none"]


@dataclass(frozen=True)
class Knobs:
    """Settings of the default policy.

    Attributes
    ----------
    target_wait, V : float or None
        How long jobs may wait for a good match, in slots, or V itself; one of the two.
    work_conserving : bool
        Whether no server idles while a job waits.
    exploration : "thompson", "ucb" or "none"
        How to try what is not known yet.
    gamma : float
        Cost of using a server, above one.
    """

    target_wait: float | None
    V: float | None
    work_conserving: bool = False
    exploration: Exploration = "thompson"
    gamma: float = 1.2

    def __post_init__(self) -> None:
        if not isinstance(self.work_conserving, bool):
            raise BadInput(f"work_conserving must be true or false; got {self.work_conserving!r}")
        self.policy(None)

    def policy(self, weight: Sequence[float] | None) -> Sabr:
        """Return the policy for classes with these weights: noise is measured, no job is served twice at a time."""
        return Sabr(V=self.V, target_wait=self.target_wait, gamma=self.gamma, weight=weight, noise="estimate",
                    exploration=self.exploration, assignment="distinct", limit="queue",
                    work_conserving=self.work_conserving)  # fmt: skip

    def turned(
        self,
        target_wait: float | None,
        V: float | None,
        work_conserving: bool | None,
        exploration: Exploration | None,
        gamma: float | None = None,
    ) -> Knobs:
        """Return other settings; None stays, but of `target_wait` and `V` one replaces the other."""
        given: dict[str, Any] = {"work_conserving": work_conserving, "exploration": exploration, "gamma": gamma}
        changes = {key: value for key, value in given.items() if value is not None}
        if target_wait is not None or V is not None:
            changes |= {"target_wait": target_wait, "V": V}
        return replace(self, **changes)
