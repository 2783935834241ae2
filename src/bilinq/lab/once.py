"""The control for double pay: policies that never put two servers on one job."""

from dataclasses import replace
from typing import TypeVar

from bilinq.policies import KnownRewards, Sabr, UgdaOl

Fair = TypeVar("Fair", Sabr, KnownRewards, UgdaOl)


def once(policy: Fair) -> Fair:
    """Return the policy with at most one server per job and slot: Eq. (30) and the cap of Eq. (5) at the queue.

    As the paper has it, servers draw on their own, Eq. (29): two may serve the same job in a slot, and both are paid.
    Regret counts the second reward, which no oracle can have, and turns negative.
    """
    return replace(policy, assignment="distinct", limit="queue")
