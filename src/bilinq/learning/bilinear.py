"""The bilinear learner: ridge regression on z_ij = u_i (x) v_j, with a confidence radius or Thompson samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from bilinq.errors import BadInput, BadState
from bilinq.learning.learner import Learner, Outcome

if TYPE_CHECKING:
    from bilinq.arrays import Array
    from bilinq.problem.instances import Instances

REFRESH = 512
"""Slots between two inversions from scratch, which also happen at powers of two, while the matrix grows fast. Rank-one
updates of the inverse accumulate rounding errors; sums of the Gram matrix do not."""
PRIOR_NOISE = 0.5  # noise scale assumed before there are data, if it is estimated: that of rewards anywhere in [-1, 1]
BLOCK = 256
"""Slots whose Thompson draws are made at once, from seed and block number only, so that a restored state repeats them."""

Radius = Literal["calibrated", "paper", "published"]
Exploration = Literal["thompson", "ucb", "none"]


class BilinearState(NamedTuple):
    """State of the bilinear learner: features, ridge statistics of R replications, and the parameter for the next index.

    In terms of Eq. (11) to (16), `gram` is Lambda, `inverse` its inverse, `moment` b, `estimate` theta_hat, `drawn` the
    theta of the next index (a Thompson sample, or theta_hat) and `radius` beta (zero for Thompson samples).
    """

    job_features: Array
    server_features: Array
    noise: Array
    ridge: Array
    horizon: int
    servers: Array
    seeds: tuple[int, ...]
    normals: Array
    slot: int
    gram: Array
    inverse: Array
    moment: Array
    log_det: Array
    seen: Array
    square: Array
    estimate: Array
    drawn: Array
    radius: Array


@dataclass(frozen=True)
class Bilinear(Learner):
    """Rewards u' Theta v with unknown Theta, Eq. (1).

    Parameters
    ----------
    exploration : "thompson", "ucb" or "none"
        Sample the parameter, Eq. (16), add a confidence radius, Eq. (12), or trust the estimate.
    radius : "calibrated", "paper" or "published"
        Eq. (15), (13) or (14). The latter two also set the regularization, and need "ucb".
    noise : float, "known" or "estimate"
        Noise scale R: a number, the problem's own, or estimated from the rewards.
    regularization : float, optional
        lambda of Eq. (11); default: R^2.
    confidence : float
        delta of Eq. (15).
    """

    exploration: Exploration = "thompson"
    radius: Radius = "calibrated"
    noise: float | Literal["known", "estimate"] = "known"
    regularization: float | None = None
    confidence: float = 0.1

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> BilinearState:
        count, p = instances.count, instances.job_features.shape[2] * instances.server_features.shape[2]
        noise = self._first_noise(instances)
        servers = instances.servers.sum(axis=1)
        ridge = self._ridge(noise, servers)
        eye = np.broadcast_to(np.eye(p), (count, p, p))
        state = BilinearState(
            job_features=np.ascontiguousarray(instances.job_features),
            server_features=np.ascontiguousarray(instances.server_features),
            noise=noise, ridge=ridge, horizon=horizon, servers=servers, slot=0,
            seeds=tuple(int(rng.integers(2**63)) for rng in rngs), normals=np.zeros((count, 0, p)),
            gram=eye * ridge[:, None, None], inverse=eye / ridge[:, None, None], moment=np.zeros((count, p)),
            log_det=np.zeros(count), seen=np.zeros(count), square=np.zeros(count), estimate=np.zeros((count, p)),
            drawn=np.zeros((count, p)), radius=np.zeros(count),
        )  # fmt: skip
        return self._explore(state)

    def index(self, state: BilinearState) -> Array:
        """Return the indices (R, I, J), Eq. (12) or (16)."""
        from bilinq.learning.kernels import indices

        out = np.empty((len(state.drawn), state.job_features.shape[1], state.server_features.shape[1]))
        indices(state.job_features, state.server_features, state.drawn, state.inverse, state.radius, out)
        return out

    def learn(self, state: BilinearState, outcome: Outcome) -> BilinearState:
        from bilinq.learning.kernels import observe

        total = np.clip(outcome.total, 0.0, outcome.count) if self.radius == "published" else outcome.total
        gram, inverse, moment = state.gram.copy(), state.inverse.copy(), state.moment.copy()
        log_det, seen, square = state.log_det.copy(), state.seen.copy(), state.square.copy()
        observe(state.job_features, state.server_features, outcome.count, total, outcome.squares, gram, inverse, moment,
                log_det, seen, square)  # fmt: skip
        if (state.slot + 1) % REFRESH == 0 or not (state.slot + 1) & state.slot:
            inverse, log_det = _from_scratch(gram, state.ridge)
        return self._explore(state._replace(slot=state.slot + 1, gram=gram, inverse=inverse, moment=moment,
                                            log_det=log_det, seen=seen, square=square))  # fmt: skip

    def width(self, state: BilinearState) -> Array:
        """Return the standard error R ||z_ij|| of each pair's estimate (R, I, J)."""
        u, v = state.job_features, state.server_features
        z = np.einsum("ria,rjb->rijab", u, v).reshape(*u.shape[:2], v.shape[1], -1)
        variance: Array = np.einsum("rijp,rpq,rijq->rij", z, state.inverse, z)
        return np.asarray(state.noise[:, None, None] * np.sqrt(variance))

    def beliefs(self, state: BilinearState) -> tuple[Array, Array] | None:
        u, v = state.job_features, state.server_features
        theta = state.estimate.reshape(len(u), u.shape[2], v.shape[2])
        return np.einsum("ria,rab,rjb->rij", u, theta, v), self.width(state)

    def adapt(self, state: BilinearState, instances: Instances) -> BilinearState:
        """Return the state for classes with other features of the same length; all classes share the parameter."""
        u, v = np.ascontiguousarray(instances.job_features), np.ascontiguousarray(instances.server_features)
        if (u.shape[2], v.shape[2]) != (state.job_features.shape[2], state.server_features.shape[2]):
            raise BadInput(f"features must have lengths {state.job_features.shape[2]} and {state.server_features.shape[2]}"
                           f" as before; got {u.shape[2]} and {v.shape[2]}")  # fmt: skip
        normals = _normals(state.seeds, state.slot // BLOCK, state.moment.shape[1])
        return self._explore(state._replace(job_features=u, server_features=v, servers=instances.servers.sum(axis=1),
                                            radius=np.zeros(len(u)), normals=normals))  # fmt: skip

    def check(self, state: BilinearState) -> None:
        """Raise `BadState` unless all is finite, the Gram matrix is positive definite, and `inverse` is its inverse."""
        for name in ("gram", "inverse", "moment", "seen", "square", "noise", "estimate", "drawn"):
            if not np.isfinite(getattr(state, name)).all():
                raise BadState(f"{name} must be finite")
        if not np.allclose(state.gram, state.gram.transpose(0, 2, 1), rtol=1e-9, atol=0.0):
            raise BadState("gram must be symmetric")
        least = np.linalg.eigvalsh(state.gram)[:, 0]
        if (least < 0.5 * state.ridge).any():
            raise BadState(
                f"gram must be positive definite, at least the ridge {state.ridge.min():g}; got {least.min():g}"
            )
        gap = float(np.abs(state.gram @ state.inverse - np.eye(state.gram.shape[1])).max())
        if gap > 1e-6:
            raise BadState(f"inverse must be that of gram; their product differs from one by {gap:.1e}")
        if (state.seen < 0.0).any() or (state.square < 0.0).any():
            raise BadState("seen and square must be at least zero")

    def _explore(self, state: BilinearState) -> BilinearState:
        """Return `state` with estimate, noise, radius and sample for the next slot."""
        from bilinq.learning import kernels

        theta = np.empty_like(state.estimate)
        kernels.estimate(state.inverse, state.moment, theta)
        noise, drawn, radius, normals = state.noise, theta, state.radius, state.normals
        if self.noise == "estimate":
            noise = np.empty_like(noise)
            kernels.noise_scale(state.gram, state.moment, theta, state.ridge, state.seen, state.square, PRIOR_NOISE,
                                noise)  # fmt: skip
        if self.exploration == "thompson":
            drawn = np.empty_like(theta)
            if state.slot % BLOCK == 0:
                normals = _normals(state.seeds, state.slot // BLOCK, theta.shape[1])
            kernels.sample(state.inverse, theta, normals, state.slot % BLOCK, noise, drawn)
        elif self.exploration == "ucb":
            radius = self._radius(state, noise)
        return state._replace(estimate=theta, noise=noise, drawn=drawn, radius=radius, normals=normals)

    def _radius(self, state: BilinearState, noise: Array) -> Array:
        """Return beta for the next slot, Eq. (13) to (15)."""
        t, T, n, p = state.slot + 1, state.horizon, state.servers, state.moment.shape[1]
        if self.radius == "paper":
            return np.asarray(np.sqrt(p * np.log(t * T)) + np.sqrt(n))
        if self.radius == "published":
            return np.asarray(0.1 * np.sqrt(p * np.log((1.0 + n * t) * T)) + 1.0)
        spread = np.sqrt(state.log_det + 2.0 * np.log(1.0 / self.confidence))
        return np.asarray(noise * spread + np.sqrt(state.ridge))

    def _first_noise(self, instances: Instances) -> Array:
        if self.noise == "known":
            return np.asarray(np.maximum(instances.noise.max(axis=(1, 2)), 1e-3))
        return np.full(instances.count, PRIOR_NOISE if self.noise == "estimate" else self.noise)

    def _ridge(self, noise: Array, servers: Array) -> Array:
        if self.regularization is not None:
            return np.full(noise.shape, self.regularization)
        if self.radius == "paper":
            return servers.copy()
        if self.radius == "published":
            return np.ones_like(noise)
        return np.full(noise.shape, 0.01) if self.noise == "estimate" else noise**2


def _from_scratch(gram: Array, ridge: Array) -> tuple[Array, Array]:
    """Return inverse and log-determinant (relative to the start) of the Gram matrices (R, p, p)."""
    inverse = np.linalg.inv(gram)
    inverse = 0.5 * (inverse + inverse.transpose(0, 2, 1))
    return np.ascontiguousarray(inverse), np.linalg.slogdet(gram)[1] - gram.shape[1] * np.log(ridge)


def _normals(seeds: Sequence[int], block: int, size: int) -> Array:
    """Return the standard normal draws (R, BLOCK, size) of a block of slots."""
    return np.array([np.random.default_rng((seed, block)).standard_normal((BLOCK, size)) for seed in seeds])


class Health(NamedTuple):
    """How much a bilinear learner has seen and how well that determines the model.

    `noise` is the estimated standard deviation of rewards, in the user's units. `smallest` and `largest` are the extreme
    eigenvalues of Lambda, Eq. (11): the smallest is the ridge as long as some direction of features was never seen.
    """

    observations: int
    noise: float
    smallest: float
    largest: float

    @property
    def condition(self) -> float:
        """Condition number of Lambda: how unevenly the directions of features are known."""
        return self.largest / self.smallest


def health_of(learnt: object, unit: float) -> Health | None:
    """Return the health of a bilinear learner's state, with `unit` for a reward of one; None for any other state."""
    if not isinstance(learnt, BilinearState):
        return None
    values = np.linalg.eigvalsh(learnt.gram[0])
    return Health(int(learnt.seen[0]), float(unit * learnt.noise[0]), float(values[0]), float(values[-1]))
