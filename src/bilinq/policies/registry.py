"""The registry of policies: the names for files, the command line, sweeps and the live service, and how to make one.

To add a policy, write its class, and add one line to `POLICIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from bilinq.arrays import check_known, one_of, short
from bilinq.errors import BadInput
from bilinq.policies.allocators import Allocator, Exact
from bilinq.policies.baselines import CMu, FirstCome, Greedy, MaxWeight, Random, StaticSplit
from bilinq.policies.fair import KnownRewards, Sabr, UgdaOl
from bilinq.policies.nodes import FixedPoint, Rounds
from bilinq.policies.policy import Policy

if TYPE_CHECKING:
    from bilinq.distributed import Penalty

POLICIES: dict[str, type[Policy]] = {
    "sabr": Sabr,
    "ugda-ol": UgdaOl,
    "known-rewards": KnownRewards,
    "max-weight": MaxWeight,
    "c-mu": CMu,
    "greedy": Greedy,
    "random": Random,
    "first-come": FirstCome,
    "static-split": StaticSplit,
}
"""Policies by name."""

ALLOCATORS: dict[str, type[Allocator]] = {"exact": Exact, "rounds": Rounds, "fixed-point": FixedPoint}
"""Ways to compute an allocation, by name."""


def make_policy(kind: str, options: Mapping[str, Any]) -> Policy:
    """Return the policy called `kind` with `options`, the arguments of its class.

    Examples
    --------
    >>> make_policy("max-weight", {"V": 3.0})
    MaxWeight(V=3.0, gamma=1.0, assignment='distinct')
    """
    family = POLICIES[one_of("policy", kind, tuple(POLICIES))]
    if "allocation" in options:
        options = {**options, "allocation": make_allocator(options["allocation"])}
    policy: Policy = _built(family, options, f"option of policy {kind!r}")
    return policy


def make_allocator(given: Any) -> Allocator:
    """Return the allocator that a word, or a table with `kind` and options, describes; return an allocator as it is.

    Examples
    --------
    >>> make_allocator({"kind": "rounds", "k": 5, "penalty": "power:2"}).penalty
    Power(beta=2)
    """
    if isinstance(given, Allocator):
        return given
    table = {"kind": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping) or "kind" not in table:
        raise BadInput(f"allocation must be a word or a table with the key 'kind'; got {short(given)}")
    family = ALLOCATORS[one_of("allocation", table["kind"], tuple(ALLOCATORS))]
    options = {key: make_penalty(value) if key == "penalty" else value for key, value in table.items() if key != "kind"}
    allocator: Allocator = _built(family, options, f"option of allocation {table['kind']!r}")
    return allocator


def make_penalty(given: str | Penalty) -> Penalty:
    """Return the penalty that "power:2", "bounded:2,1" or "barrier" names; return a penalty as it is."""
    from bilinq.distributed.penalties import FAMILIES

    if not isinstance(given, str):
        return given
    kind, _, rest = given.partition(":")
    family, parameters = FAMILIES[one_of("penalty", kind, tuple(FAMILIES))]
    return family(*(parse_numbers("penalty", rest, parameters) if parameters else ()))


def parse_numbers(name: str, text: str, size: int | None = None) -> list[float]:
    """Return the numbers of a text with commas between them."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{name} must be numbers with commas between them; got {text!r}") from None
    if size is not None and len(numbers) != size:
        raise BadInput(f"{name} must have {size} numbers; got {text!r}")
    return numbers


def _built(family: type[Any], options: Mapping[str, Any], noun: str) -> Any:
    """Return an object of a dataclass `family`; raise an error that names an unknown or missing option."""
    check_known(options, [field.name for field in fields(family)], noun)
    for field in fields(family):
        if field.default is MISSING and field.name not in options:
            raise BadInput(f"missing {noun}: {field.name!r}")
    return family(**options)
