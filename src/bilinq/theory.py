"""The paper's bounds with their constants, the stationary queue, and rules for choosing V.

The bounds are for the worst case and far above simulated values: on the paper's synthetic instance (traffic 1, 4 servers,
V = 58) the bound on the total queue is 513, and simulations find about 20. Use the bounds to see how things scale, and
`stationary_queue` for the values to expect. All of it is for servers that form one pool: functions raise `BadInput` for a
problem with eligible pairs or service rates by pair.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, count, non_negative, one_of, positive, require, scalar, shaped
from bilinq.errors import BadInput
from bilinq.problem import Problem

Constants = Literal["appendix", "theorem"]
ROUNDING = 1e-9


@dataclass(frozen=True)
class RegretBound:
    """The four terms of the regret bound, Eq. (26).

    The paper proves the sum only up to constants and factors logarithmic in the horizon, so `total` is an order of
    magnitude, not a number that regret stays below.

    Attributes
    ----------
    alpha1, alpha2, alpha3, alpha4 : float
        The coefficients of V, of 1 / slack, of horizon / V and of sqrt(horizon).
    queue_term, slack_term, service_term, learning_term : float
        Each coefficient times its factor: the queue left at the end (two terms), random service, learning.
    constants : str
        Which version of `alpha1` and `alpha2` was used; see `regret_bound`.
    """

    alpha1: float
    alpha2: float
    alpha3: float
    alpha4: float
    queue_term: float
    slack_term: float
    service_term: float
    learning_term: float
    constants: Constants

    @property
    def total(self) -> float:
        """Sum of the four terms."""
        return self.queue_term + self.slack_term + self.service_term + self.learning_term


def regret_bound(
    problem: Problem, V: float, horizon: int, gamma: float = 1.2, weight: ArrayLike | None = None,
    constants: Constants = "appendix",
) -> RegretBound:  # fmt: skip
    """Return the regret bound of the weighted proportional-fair policy, term by term; Eq. (26).

    Parameters
    ----------
    problem : Problem
        With what the proof assumes: equal service rates, arrivals in every class, at most one arrival per slot, load below
        capacity, rewards that are bilinear in the features, with feature products and parameter of norm at most one.
    V : float
        Weight of rewards against queues.
    horizon : int
        Number of slots, T.
    gamma : float
        Offset of the rewards, above one.
    weight : (I,) array, optional
        Weights of the job classes; default: ones.
    constants : {"appendix", "theorem"}
        The theorem and the appendix print different coefficients: the appendix has gamma (gamma + 1) more in `alpha1`
        and gamma more in `alpha2`. Only the appendix's follow from the proof; the theorem's count gamma as a constant.

    Notes
    -----
    The paper has d1 = d2 = d; here d is sqrt(d1 d2), the same where they are equal.
    """
    s = _bound_setting(problem, gamma, weight)
    _check_norms(problem)
    v, slots = scalar("V", V, positive), count("horizon", horizon)
    a1, a3 = _alpha1(s, constants), _alpha3(s)
    a2 = (s.gamma if constants == "appendix" else 1.0) / s.mu * (s.n + s.rho + 2 * s.c * s.n**3 * s.spread)
    d = np.sqrt(problem.job_features.shape[1] * problem.server_features.shape[1])
    a4 = float(d**2 * np.sqrt(s.n) + d * s.n)
    return RegretBound(
        alpha1=a1, alpha2=a2, alpha3=a3, alpha4=a4, queue_term=a1 * v, slack_term=a2 / (s.n - s.rho),
        service_term=a3 * slots / v, learning_term=a4 * slots**0.5, constants=constants,
    )  # fmt: skip


@dataclass(frozen=True)
class ExplicitRegretBound:
    """The regret bound with all constants and logarithms of its proof, Eq. (72): a number that regret stays below.

    Attributes
    ----------
    queue_part, learning_part, service_part : float
        The queue left at the end, what learning costs, and random service.
    """

    queue_part: float
    learning_part: float
    service_part: float

    @property
    def total(self) -> float:
        """Sum of the three parts."""
        return self.queue_part + self.learning_part + self.service_part


def explicit_regret_bound(
    problem: Problem, V: float, horizon: int, gamma: float = 1.2, weight: ArrayLike | None = None
) -> ExplicitRegretBound:
    """Return the bound on the regret of Algorithm 1 (`Sabr.as_printed`) that the appendix proves, Eq. (72).

    Arguments and assumptions are those of `regret_bound`. One step of the printed proof loses a factor of two, which is
    restored here.

    Examples
    --------
    >>> problem = Problem.synthetic(seed=1)
    >>> round(explicit_regret_bound(problem, V=58.0, horizon=777).learning_part)
    7583
    >>> round(regret_bound(problem, V=58.0, horizon=777).learning_term)
    446
    """
    s, slots = _bound_setting(problem, gamma, weight), count("horizon", horizon)
    v = scalar("V", V, positive)
    _check_norms(problem)
    p = problem.job_features.shape[1] * problem.server_features.shape[1]
    radius = np.sqrt(p * np.log(float(slots) ** 2)) + np.sqrt(s.n)
    spread = (
        2.0 * p * np.log(s.n + s.n * slots / p)
    )  # bounds the sum of all ||z||^2 in the norm of the inverse of Lambda
    drift = s.n**2 / 2 * (1 + s.c**2 * s.mu) * s.rarity * slots + s.w.sum() / 2 * (slots + 1)
    return ExplicitRegretBound(
        queue_part=s.gamma / s.mu * queue_bound(problem, v, gamma, weight),
        learning_part=float(2.0 * radius * np.sqrt(s.n * slots * spread) + 4.0 * s.n),
        service_part=float(drift / v),
    )


@dataclass(frozen=True)
class UgdaBound:
    """The regret bound of UGDA-OL as the paper converts it, Eq. (73), with all constants one: an order of magnitude.

    Attributes
    ----------
    queue_term, slack_term, service_term, learning_term : float
        V, 1 / slack, I T / V and J T; the last is linear in the horizon.
    """

    queue_term: float
    slack_term: float
    service_term: float
    learning_term: float

    @property
    def total(self) -> float:
        """Sum of the four terms."""
        return self.queue_term + self.slack_term + self.service_term + self.learning_term


def ugda_regret_bound(problem: Problem, V: float, horizon: int) -> UgdaBound:
    """Return the regret bound of UGDA-OL, converted from a time average to a sum over the horizon; Eq. (73)."""
    _check_pooled(problem)
    if problem.slack <= 0:
        raise BadInput(f"the load must be below capacity for this formula; got slack {problem.slack:g}")
    v, slots = scalar("V", V, positive), count("horizon", horizon)
    return UgdaBound(v, 1.0 / problem.slack, problem.job_classes * slots / v, float(problem.server_classes * slots))


def queue_bound(problem: Problem, V: float, gamma: float = 1.2, weight: ArrayLike | None = None) -> float:
    """Return a bound on the expected total queue at any time, from an empty start; Eq. (27).

    It is (n + rho) / slack + B + 1 with B the larger of (gamma + 1) V n / w_min and 2 c n^3 w_max / (w_min slack),
    c = (gamma + 1) / (gamma - 1).
    """
    s = _bound_setting(problem, gamma, weight)
    slack = s.n - s.rho
    full = (s.gamma + 1) * scalar("V", V, positive) * s.n / s.w.min()
    distinct = 2 * s.c * s.n**3 / slack * s.spread
    return float((s.n + s.rho) / slack + max(full, distinct) + 1)


def holding_cost_bound(
    problem: Problem, V: float, gamma: float = 1.2, weight: ArrayLike | None = None, cost: ArrayLike | None = None
) -> float:
    """Return a bound on the time-average expected holding cost up to any time, from an empty start; Eq. (28).

    It is max_i(cost_i / w_i) times the constant of the drift over its rate mu slack / (2 rho). `cost` (I,) defaults to
    the problem's own.
    """
    s = _bound_setting(problem, gamma, weight)
    c = problem.holding_cost if cost is None else shaped("cost", non_negative("cost", cost), s.w.shape)
    spare = (s.n + s.rho) / (2 * s.rho)
    drift = s.mu * (_alpha3(s) + spare * s.n * (s.gamma + 1) * scalar("V", V, positive))
    rate = s.mu * (s.n - s.rho) / (2 * s.rho)
    return float((c / s.w).max() * drift / rate)


def stationary_queue(problem: Problem, V: float, gamma: float = 1.2, weight: ArrayLike | None = None) -> Array:
    """Return the queue of each job class (I,) in equilibrium, traffic_i V (gamma - best reward_i) / w_i; Eq. (21).

    This is a rule of thumb, not a bound: it holds where rewards are known and no server class is full, so that every job
    class uses its best server class. Service rates may differ.
    """
    _check_pooled(problem)
    best = problem.mean_reward[:, problem.servers > 0].max(axis=1)
    price = scalar("gamma", gamma) - best
    if price.min() <= 0:
        raise BadInput(f"gamma must exceed every best reward; got gamma = {gamma:g}, reward {best.max():g}")
    queue: Array = problem.traffic * scalar("V", V, positive) * price / _weights(problem, weight)
    return queue


def V_order(problem: Problem, horizon: int) -> float:
    """Return sqrt(I T), Eq. (23), the order of V that balances the bound; 70.7 on the paper's synthetic instance."""
    _check_pooled(problem)
    return float(np.sqrt(problem.job_classes * count("horizon", horizon)))


def V_minimiser(
    problem: Problem, horizon: int, gamma: float = 1.2, weight: ArrayLike | None = None, constants: Constants = "appendix"
) -> float:  # fmt: skip
    """Return sqrt(alpha3 T / alpha1), where the regret bound is least; Eq. (24).

    Far too large for short horizons: 680 (appendix) or 1105 (theorem) on the paper's synthetic instance with T = 500,
    where the queue would still be filling at the end.
    """
    s = _setting(problem, gamma, weight)
    return float(np.sqrt(_alpha3(s) * count("horizon", horizon) / _alpha1(s, constants)))


def V_published(problem: Problem, gamma: float = 1.2, weight: ArrayLike | None = None) -> float:
    """Return the V of the authors' public code, which does not depend on the horizon; Eq. (25).

    It is sqrt((a3 / min_i(rho_i / w_i) + sum w) mu w_min / a1) with a1 = gamma^2 n and a3 = (c n)^2: 57.99 on the
    paper's synthetic instance, 38.35 with weights 7/4 and 1/4 on half of the classes each.
    """
    s = _setting(problem, gamma, weight)
    a1, a3 = s.gamma**2 * s.n, (s.c * s.n) ** 2
    return float(np.sqrt((a3 * s.rarity + s.w.sum()) * s.mu * s.w.min() / a1))


def V_target_wait(
    target_wait: float, reward: float, gamma: float = 1.2, service_rate: float = 1.0, weight: float = 1.0
) -> float:
    """Return the V at which jobs that earn `reward` wait about `target_wait` slots: Eq. (21) solved for V, Eq. (22).

    Examples
    --------
    >>> round(V_target_wait(target_wait=20.0, reward=0.7), 6)
    40.0
    """
    price = scalar("gamma", gamma) - scalar("reward", reward)
    if price <= 0:
        raise BadInput(f"gamma must exceed reward; got gamma = {gamma:g}, reward = {reward:g}")
    rate, w = scalar("service_rate", service_rate, positive), scalar("weight", weight, positive)
    return scalar("target_wait", target_wait, positive) * rate * w / price


class _Setting(NamedTuple):
    """Quantities of the formulas, as in the table of `docs/maths.md`."""

    n: float
    rho: float
    mu: float
    gamma: float
    w: Array
    c: float
    spread: float
    rarity: float


def _check_pooled(problem: Problem) -> None:
    """Raise an error if the servers are not one pool: nothing here is proved for that."""
    if problem.eligible is not None:
        raise BadInput(
            "eligible must be None: the paper's results assume that every server class may serve every job class"
        )
    if problem.service_rate.ndim == 2:
        raise BadInput("service_rate must not depend on the server class: the paper's results assume one rate for each "
                       f"job class; got shape {problem.service_rate.shape}")  # fmt: skip


def _setting(problem: Problem, gamma: float, weight: ArrayLike | None) -> _Setting:
    _check_pooled(problem)
    require("arrival_rate", problem.arrival_rate, lambda x: x > 0, "positive in every class for this formula")
    rate = problem.service_rate
    require("service_rate", rate, lambda x: x == rate[0], f"equal in all classes for this formula ({rate[0]:g})")
    g = scalar("gamma", gamma)
    if g <= 1:
        raise BadInput(f"gamma must be above 1; got {g:g}")
    n, rho = float(problem.servers.sum()), float(problem.traffic.sum())
    if rho >= n:
        raise BadInput(f"the load must be below capacity for this formula; got rho = {rho:g}, n = {n:g}")
    w = _weights(problem, weight)
    spread, rarity = float(w.max() / w.min()), float((w / problem.traffic).max())
    return _Setting(n=n, rho=rho, mu=float(rate[0]), gamma=g, w=w, c=(g + 1) / (g - 1), spread=spread, rarity=rarity)


def _bound_setting(problem: Problem, gamma: float, weight: ArrayLike | None) -> _Setting:
    """Return the setting; raise an error if more than one job can arrive in a slot, against the proofs' assumption."""
    total = float(problem.arrival_rate.sum())
    if total > 1 + ROUNDING:
        raise BadInput(f"arrival_rate must sum to at most 1 (one arrival per slot) for the bounds; got {total:g}")
    return _setting(problem, gamma, weight)


def _check_norms(problem: Problem) -> None:
    """Raise an error unless ||z_ij|| <= 1 and ||theta|| <= 1, as the proofs of learning assume."""
    if not problem.bounded:
        raise BadInput("mean_reward must be in [-1, 1] for the regret bound; scale the table")
    u, v = problem.job_features, problem.server_features
    longest = float(np.linalg.norm(u, axis=1).max() * np.linalg.norm(v, axis=1).max())
    if longest > 1 + ROUNDING:
        raise BadInput(f"job_features and server_features must have ||u_i|| ||v_j|| at most 1 for the regret bound; got "
                       f"{longest:g}")  # fmt: skip
    theta = problem.theta
    if theta is None:
        theta = np.linalg.pinv(u) @ problem.mean_reward @ np.linalg.pinv(v).T  # the shortest that fits, if any does
        if np.abs(u @ theta @ v.T - problem.mean_reward).max() > ROUNDING:
            raise BadInput("mean_reward must be bilinear in the features for the regret bound; omit the features")
    if (size := float(np.linalg.norm(theta))) > 1 + ROUNDING:
        what = "theta" if problem.theta is not None else "the theta that gives mean_reward"
        raise BadInput(f"{what} must have norm at most 1 for the regret bound; got {size:g}")


def _weights(problem: Problem, weight: ArrayLike | None) -> Array:
    return shaped("weight", positive("weight", 1.0 if weight is None else weight), (problem.job_classes,))


def _alpha1(s: _Setting, constants: Constants) -> float:
    appendix = one_of("constants", constants, ("appendix", "theorem")) == "appendix"
    factor = s.gamma * (s.gamma + 1) if appendix else 1.0
    return float(factor * s.n / (s.mu * s.w.min()))


def _alpha3(s: _Setting) -> float:
    return float(s.n**2 / 2 * (1 + s.c**2 * s.mu) * s.rarity + s.w.sum() / 2)
