"""From plain settings (words and numbers of a file or a command line) to problems, policies and arrival laws."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from bilinq import policies
from bilinq.arrays import count, one_of, short
from bilinq.errors import BadInput
from bilinq.policies import Allocator, Policy
from bilinq.problem import Problem
from bilinq.simulation.arrivals import Arrivals, Bernoulli, MarkovModulated, Poisson

if TYPE_CHECKING:
    from bilinq.distributed import Penalty

POLICIES: dict[str, type[Any]] = {
    "sabr": policies.Sabr,
    "ugda-ol": policies.UgdaOl,
    "known-rewards": policies.KnownRewards,
    "max-weight": policies.MaxWeight,
    "greedy": policies.Greedy,
    "random": policies.Random,
    "first-come": policies.FirstCome,
    "static-split": policies.StaticSplit,
}
"""The policies by the names that files and the command line use."""

ALLOCATORS: dict[str, type[Any]] = {
    "exact": policies.Exact,
    "rounds": policies.Rounds,
    "fixed-point": policies.FixedPoint,
}
"""Ways to compute an allocation, by the same kind of names."""

ARRIVALS: dict[str, Callable[[], Arrivals]] = {
    "bernoulli": Bernoulli,
    "poisson": Poisson,
    "markov-modulated": MarkovModulated,
}
"""The arrival laws that need no settings of their own."""

INSTANCES = ("random", "fixed")
"""Whether every replication draws its own synthetic problem, as in the paper, or all share one."""

SYNTHETIC = (
    "job_classes", "server_classes", "dimension", "servers", "traffic", "service_rate", "noise", "holding_cost", "seed",
)  # fmt: skip
"""The settings of a synthetic problem: the arguments of `Problem.synthetic`."""


def make_policy(kind: str, options: Mapping[str, Any]) -> Policy:
    """Return the policy called `kind` with `options`, the arguments of its class.

    Examples
    --------
    >>> make_policy("max-weight", {"V": 3.0})
    MaxWeight(V=3.0, gamma=1.0, assignment='distinct')
    """
    family = POLICIES[one_of("policy", kind, tuple(POLICIES))]
    policy: Policy = _built(family, _with("allocation", make_allocator, options), f"option of policy {kind!r}")
    return policy


def make_allocator(given: Any) -> Allocator:
    """Return what a word or a table with `kind` and options describes; an allocator is returned as it is.

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
    options = _with("penalty", make_penalty, {key: value for key, value in table.items() if key != "kind"})
    allocator: Allocator = _built(family, options, f"option of allocation {table['kind']!r}")
    return allocator


def make_penalty(given: str | Penalty) -> Penalty:
    """Return the penalty that "power:2", "bounded:2,1" or "barrier" names; a penalty is returned as it is."""
    from bilinq.distributed import Barrier, Bounded, Power

    if not isinstance(given, str):
        return given
    kind, _, rest = given.partition(":")
    one_of("penalty", kind, ("power", "bounded", "barrier"))
    if kind == "barrier":
        return Barrier()
    return Power(*parse_numbers("penalty", rest, 1)) if kind == "power" else Bounded(*parse_numbers("penalty", rest, 2))


def make_arrivals(law: str) -> Arrivals:
    """Return the arrival law of that name."""
    return ARRIVALS[one_of("arrivals", law, tuple(ARRIVALS))]()


def make_problems(settings: Mapping[str, Any], replications: range) -> Problem | list[Problem]:
    """Return what `simulate` shall run on: one problem, or one for each number in `replications`.

    Parameters
    ----------
    settings : mapping
        Either `file`, a problem file, or the arguments of `Problem.synthetic`; and `instances`. With "random" (the
        default of synthetic problems) replication k gets the problem drawn with `seed` + k, with "fixed" all
        replications get the one drawn with `seed`.
    replications : range
        The numbers k of the replications to run, counted from zero.
    """
    _only(settings, ("file", "instances", *SYNTHETIC), "key of the problem")
    given = {key: value for key, value in settings.items() if key in SYNTHETIC}
    instances = one_of("instances", settings.get("instances", "fixed" if "file" in settings else "random"), INSTANCES)
    if "file" in settings:
        if given:
            raise BadInput(f"file and {next(iter(given))} exclude each other: a problem is read or drawn")
        if instances == "random":
            raise BadInput("instances must be 'fixed' where the problem is read from a file; got 'random'")
        if not isinstance(settings["file"], str):
            raise BadInput(f"file must be the name of a problem file; got {short(settings['file'])}")
        return Problem.load(settings["file"])
    seed = count("seed", given.pop("seed", 0), least=0)
    if instances == "fixed":
        return Problem.synthetic(**given, seed=seed)
    return [Problem.synthetic(**given, seed=seed + k) for k in replications]


def parse_option(text: str) -> tuple[str, Any]:
    """Return key and value of `key=value`; values are JSON where they can be, and words otherwise.

    Examples
    --------
    >>> parse_option("V=58"), parse_option("radius=paper"), parse_option("weight=[2, 1]")
    (('V', 58), ('radius', 'paper'), ('weight', [2, 1]))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"a setting must read key=value; got {text!r}")
    try:
        return key.strip(), json.loads(value)
    except ValueError:
        return key.strip(), value.strip()


def parse_numbers(name: str, text: str, size: int | None = None) -> list[float]:
    """Return the numbers between commas."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{name} must be numbers with commas between them; got {text!r}") from None
    if size is not None and len(numbers) != size:
        raise BadInput(f"{name} must have {size} numbers; got {text!r}")
    return numbers


def _with(key: str, make: Callable[[Any], Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `options` with what stands at `key`, if anything, made into an object."""
    return {**options, key: make(options[key])} if key in options else options


def _built(family: type[Any], options: Mapping[str, Any], noun: str) -> Any:
    """Return an object of a dataclass `family`, or say which option it does not know or lacks."""
    _only(options, [field.name for field in fields(family)], noun)
    for field in fields(family):
        if field.default is MISSING and field.name not in options:
            raise BadInput(f"missing {noun}: {field.name!r}")
    return family(**options)


def _only(given: Mapping[str, Any], known: tuple[str, ...] | list[str], noun: str) -> None:
    for key, value in given.items():
        if key not in known:
            raise BadInput(f"unknown {noun}: {key!r} (value {short(value)}); known are {', '.join(known)}")
