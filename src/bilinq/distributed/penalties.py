"""Penalties: the prices that server classes charge for their load, Eq. (37), in place of a hard capacity."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, positive, require
from bilinq.errors import BadInput

Curve: TypeAlias = Callable[[Array, Array], ArrayLike]  # a function of load and capacity, (..., J) each

HUGE = 1e300  # the price of an impossible load: finite, so that an idle class can compute with it
FILL = np.linspace(0.02, 0.98, 25)  # loads, in parts of the capacity, at which a penalty is checked before it is used
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


class Penalty(ABC):
    """The price p_j(z) of a server class with load z (..., J) and capacity n (..., J); it must rise with z.

    For a penalty of your own, use `Own` or derive from this class.
    """

    @abstractmethod
    def price(self, z: Array, n: Array) -> Array:
        """Return p_j(z), at least zero and increasing."""

    @abstractmethod
    def slope(self, z: Array, n: Array) -> Array:
        """Return the derivative of the price, positive for z > 0."""

    @abstractmethod
    def cost(self, z: Array, n: Array) -> Array:
        """Return C_j(z), the integral of the price from zero to z."""

    @abstractmethod
    def stiffness(self, cost: Array, spare: float) -> Array:
        """Return a bound on 1 + z p'(z) / (p(z) + c), Eq. (39), that needs no fixed point; infinite if there is none.

        Parameters
        ----------
        cost : (..., I, J) array
            c, the part of a pair's price that does not depend on load.
        spare : float
            At the fixed point no load exceeds (1 - spare) of its capacity; only the barrier needs it.
        """

    def stiffness_at(self, price: Array, cost: Array) -> Array:
        """Return 1 + z p'(z) / (p + c) of pairs (..., I, J) at a price, Eq. (44); infinite unless overridden.

        A node can compute it from the price it receives, without knowing the load.
        """
        return np.full(np.broadcast_shapes(price.shape, cost.shape), np.inf)

    def most(self, n: Array) -> Array:
        """Return the load that cannot be reached, infinite unless the price has a pole."""
        return np.full(n.shape, np.inf)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Power(Penalty):
    """p = (z / n)^beta: the larger beta, the closer to a hard capacity.

    Parameters
    ----------
    beta : float or (J,) array
        Positive.
    """

    beta: Array

    def __init__(self, beta: ArrayLike = 2.0) -> None:
        object.__setattr__(self, "beta", positive("beta", beta))

    def __repr__(self) -> str:
        return f"Power(beta={_shown(self.beta)})"

    def price(self, z: Array, n: Array) -> Array:
        return np.asarray((z / n) ** self.beta)

    def slope(self, z: Array, n: Array) -> Array:
        return np.asarray(self.beta / n * (z / n) ** (self.beta - 1.0))

    def cost(self, z: Array, n: Array) -> Array:
        return np.asarray(n / (self.beta + 1.0) * (z / n) ** (self.beta + 1.0))

    def stiffness(self, cost: Array, spare: float) -> Array:
        return np.asarray(np.broadcast_to(1.0 + self.beta, cost.shape))

    def stiffness_at(self, price: Array, cost: Array) -> Array:
        return np.asarray(1.0 + self.beta * price / (price + cost))


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Bounded(Penalty):
    """p = ceiling x^beta / (1 + x^beta) with x = z / n: elasticity at most beta and price below a ceiling.

    Parameters
    ----------
    beta, ceiling : float or (J,) array
        Positive.
    """

    beta: Array
    ceiling: Array

    def __init__(self, beta: ArrayLike = 2.0, ceiling: ArrayLike = 2.0) -> None:
        for name, value in (("beta", beta), ("ceiling", ceiling)):
            object.__setattr__(self, name, positive(name, value))

    def __repr__(self) -> str:
        return f"Bounded(beta={_shown(self.beta)}, ceiling={_shown(self.ceiling)})"

    def price(self, z: Array, n: Array) -> Array:
        grown = (z / n) ** self.beta
        return np.asarray(self.ceiling * (grown / (1.0 + grown)))

    def slope(self, z: Array, n: Array) -> Array:
        x, beta = z / n, self.beta
        return np.asarray(self.ceiling * beta / n * x ** (beta - 1.0) / (1.0 + x**beta) ** 2)

    def cost(self, z: Array, n: Array) -> Array:
        """Return ceiling times n times (x - x F(1, 1 / beta; 1 + 1 / beta; -x^beta)), F Gauss's hypergeometric function."""
        from scipy.special import hyp2f1

        x, beta = z / n, self.beta
        return np.asarray(self.ceiling * n * x * (1.0 - hyp2f1(1.0, 1.0 / beta, 1.0 + 1.0 / beta, -(x**beta))))

    def stiffness(self, cost: Array, spare: float) -> Array:
        return np.asarray(1.0 + self.ceiling * self.beta / (self.ceiling + cost))

    def stiffness_at(self, price: Array, cost: Array) -> Array:
        return np.asarray(1.0 + self.beta * price / (price + cost) * (1.0 - price / self.ceiling))


@dataclass(frozen=True)
class Barrier(Penalty):
    """p = z / (n - z): no load reaches the capacity."""

    def price(self, z: Array, n: Array) -> Array:
        """Return z / (n - z), and a huge number from n on."""
        room = n - z
        return np.where(room > 0.0, z / np.where(room > 0.0, room, 1.0), HUGE)

    def slope(self, z: Array, n: Array) -> Array:
        room = n - z
        return np.where(room > 0.0, n / np.where(room > 0.0, room, 1.0) ** 2, HUGE)

    def cost(self, z: Array, n: Array) -> Array:
        x = z / n
        return np.where(x < 1.0, -n * np.log1p(-np.minimum(x, 0.999999999999)) - z, np.inf)

    def stiffness(self, cost: Array, spare: float) -> Array:
        if not 0.0 < spare < 1.0:
            raise BadInput(f"spare must be between zero and one for the barrier; got {spare}")
        return np.full(cost.shape, 2.0 / spare)

    def stiffness_at(self, price: Array, cost: Array) -> Array:
        return np.asarray(1.0 + price / (price + cost) * (1.0 + price))

    def most(self, n: Array) -> Array:
        return n


class Own(Penalty):
    """A user-defined penalty: its price, the derivative and, if known, the integral, each of load and capacity.

    Parameters
    ----------
    price, slope : functions
        Of load z (..., J) and capacity n (..., J).
    cost : function, optional
        The integral of the price from zero; default: computed by Gauss's rule.
    beta : float or (J,) array, optional
        A bound on the elasticity z p'(z) / p(z). With it gains can be chosen by the paper's condition, without knowing the
        fixed point.
    ceiling : float or (J,) array, optional
        A bound on the price, which together with `beta` allows larger gains.

    Examples
    --------
    >>> steep = Own(price=lambda z, n: np.expm1(z / n), slope=lambda z, n: np.exp(z / n) / n)
    >>> steep.cost(np.array([1.0]), np.array([1.0])).round(6).tolist()
    [0.718282]
    """

    def __init__(
        self, price: Curve, slope: Curve, cost: Curve | None = None, *, beta: ArrayLike | None = None,
        ceiling: ArrayLike | None = None,
    ) -> None:  # fmt: skip
        for name, value in (("price", price), ("slope", slope), ("cost", cost or price)):
            if not callable(value):
                raise BadInput(f"{name} must be a function of load and capacity; got {value!r}")
        if beta is None and ceiling is not None:
            raise BadInput("ceiling needs beta, a bound on the elasticity of the price; got None")
        self._price, self._slope, self._cost = price, slope, cost
        self.beta = None if beta is None else positive("beta", beta)
        self.ceiling = None if ceiling is None else positive("ceiling", ceiling)

    def __repr__(self) -> str:
        return "Own(...)"

    def price(self, z: Array, n: Array) -> Array:
        return np.asarray(self._price(z, n), dtype=np.float64)

    def slope(self, z: Array, n: Array) -> Array:
        return np.asarray(self._slope(z, n), dtype=np.float64)

    def cost(self, z: Array, n: Array) -> Array:
        if self._cost is not None:
            return np.asarray(self._cost(z, n), dtype=np.float64)
        parts = [w * self.price(0.5 * (x + 1.0) * z, n) for x, w in zip(NODES, WEIGHTS, strict=True)]
        return np.asarray(0.5 * z * np.sum(parts, axis=0))

    def stiffness(self, cost: Array, spare: float) -> Array:
        """Return 1 + beta p / (p + c) at the highest price, infinite without a bound on the elasticity."""
        if self.beta is None:
            return np.full(cost.shape, np.inf)
        share = 1.0 if self.ceiling is None else self.ceiling / (self.ceiling + cost)
        return np.asarray(np.broadcast_to(1.0 + self.beta * share, cost.shape))

    def stiffness_at(self, price: Array, cost: Array) -> Array:
        if self.beta is None:
            return super().stiffness_at(price, cost)
        return np.asarray(1.0 + self.beta * price / (price + cost))


FAMILIES: dict[str, tuple[Callable[..., Penalty], int]] = {
    "power": (Power, 1),
    "bounded": (Bounded, 2),
    "barrier": (Barrier, 0),
}
"""Penalties by their name in sweeps and on the command line, each with the number of its parameters."""


def _shown(value: Array) -> str:
    return f"{value:g}" if not value.ndim else str(value.tolist())


def checked(penalty: Penalty, n: Array) -> Penalty:
    """Return `penalty` if its price fits capacities `n` (..., J), increases, and has the slope and bounds it states."""
    if not isinstance(penalty, Penalty):
        raise BadInput(f"penalty must be a Penalty such as Power(2.0); got {penalty!r}")
    capacity = np.where(n > 0.0, n, 1.0)
    loads = FILL.reshape(-1, *[1] * n.ndim) * capacity
    try:
        price, slope = (np.broadcast_to(f(loads, capacity), loads.shape) for f in (penalty.price, penalty.slope))
        ahead = np.broadcast_to(penalty.price(loads + 1e-6 * capacity, capacity), loads.shape)
    except ValueError:
        raise BadInput(f"penalty must return one price for each of {n.shape[-1]} server classes") from None
    require("penalty price", price, lambda p: (p >= 0.0) & np.isfinite(p), "non-negative and finite below capacity")
    require("rise of the penalty price", np.diff(price, axis=0), lambda d: d > 0.0, "positive")
    require("penalty slope", slope, lambda s: (s > 0.0) & np.isfinite(s), "positive and finite")
    off = (ahead - price) / (1e-6 * capacity * slope) - 1.0
    require("penalty slope over the slope of its price, less one,", off, lambda x: np.abs(x) < 0.01, "zero")
    if isinstance(penalty, Own) and penalty.beta is not None:
        elasticity = loads * slope / np.where(price > 0.0, price, 1.0) - penalty.beta
        require("elasticity of the penalty price less beta", elasticity, lambda x: x <= 1e-6, "at most zero")
        if penalty.ceiling is not None:
            require("penalty price less its ceiling", price - penalty.ceiling, lambda x: x <= 1e-9, "at most zero")
    return penalty
