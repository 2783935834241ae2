"""From plain settings (words and numbers of a file or a command line) to problems, policies and arrival laws."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from bilinq.arrays import count, one_of, short
from bilinq.errors import BadInput
from bilinq.policies.registry import check_known
from bilinq.problem import Problem
from bilinq.simulation.arrivals import Arrivals, Bernoulli, MarkovModulated, Poisson

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
    check_known(settings, ("file", "instances", *SYNTHETIC), "key of the problem")
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
