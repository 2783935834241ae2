"""The bilinear learner: ridge regression on z_ij = u_i (x) v_j, with a confidence radius or Thompson samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from bilinq.arrays import within
from bilinq.errors import BadInput, BadState
from bilinq.learning.features import block_groups, common_parts, diagonal, places, scales, warn_of_norms
from bilinq.learning.learner import Learner, Outcome

if TYPE_CHECKING:
    from bilinq.arrays import Array, IntArray
    from bilinq.problem.instances import Instances

REFRESH = 512
"""Slots between two inversions from scratch, which also happen at powers of two, while the matrix grows fast. Rank-one
updates of the inverse accumulate rounding errors; sums of the Gram matrix do not."""
STEEPEST = 1e8  # by how much features may shrink at once: beyond, what was learnt has no precision left
PRIOR_NOISE = 0.5  # noise scale assumed before there are data, if it is estimated: that of rewards anywhere in [-1, 1]
BLOCK = 256
"""Slots whose Thompson draws are made at once, from seed and block number only, so that a restored state repeats them."""

VARYING = ("gram", "inverse", "normals")
"""Arrays of a state that change their shapes: with the blocks of features, and when draws begin."""
LIMITS = {
    "job_features": (-1e100, 1e100), "server_features": (-1e100, 1e100), "job_scale": (1e-300, 1e300),
    "server_scale": (1e-300, 1e300), "noise": (0.0, 1e100), "ridge": (1e-100, 1e100), "horizon": (1, 2**60),
    "servers": (0.0, 1e15), "seeds": (0, 2**63 - 1), "normals": (-100.0, 100.0), "slot": (0, 2**53), "gram": (-1e100, 1e100),
    "inverse": (-1e100, 1e100), "moment": (-1e100, 1e100), "log_det": (-1e15, 1e15), "seen": (0.0, 1e30),
    "square": (0.0, 1e30), "estimate": (-1e100, 1e100), "drawn": (-1e100, 1e100), "radius": (0.0, 1e100),
}  # fmt: skip
"""The smallest and the largest value that a state may have after a restore."""

Radius = Literal["calibrated", "paper", "published"]
Exploration = Literal["thompson", "ucb", "none"]


class BilinearState(NamedTuple):
    """State of the bilinear learner: features, ridge statistics of R replications, and the parameter for the next index.

    In terms of Eq. (11) to (16), `gram` is Lambda, `inverse` its inverse, `moment` b, `estimate` theta_hat, `drawn` the
    theta of the next index (a Thompson sample, or theta_hat) and `radius` beta (zero for Thompson samples). Features are
    those of the classes over `job_scale` (R, d1) and `server_scale` (R, d2), Eq. (51), and all else is for these.

    `job_parts` (R, 3, d1) and `server_parts` (R, 3, d2) determine the blocks, Eq. (52); they are (1, 3, d1) and (1, 3, d2)
    if they are the same in all replications. A row of `gram` and `inverse` (R, p, b),
    where b is the size of the largest block, contains the entries of the row's block; it is the whole row if there is one.
    """

    job_features: Array
    server_features: Array
    job_scale: Array
    server_scale: Array
    job_parts: IntArray
    server_parts: IntArray
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
    radius : "calibrated", "paper" or "published", a number, or a function of the slot from 1
        Eq. (15), (13) or (14). The latter two also set the regularization, need "ucb", and use features as they are.
    noise : float, "known" or "estimate"
        Noise scale R: a number, the problem's own, or estimated from the rewards.
    regularization : float, optional
        lambda of Eq. (11), for features that are scaled by Eq. (51); default: R^2.
    confidence : float
        delta of Eq. (15).
    scale : float
        Standard errors by which samples vary, upsilon of Eq. (16); one is the posterior of a normal prior.
    bound : float
        S of Eq. (15), which the norm of the parameter is assumed not to exceed.
    rank : int, optional
        Replace what is estimated or sampled by one whose rewards are the best approximation of this rank.
    """

    exploration: Exploration = "thompson"
    radius: Radius | float | Callable[[int], float] = "calibrated"
    noise: float | Literal["known", "estimate"] = "known"
    regularization: float | None = None
    confidence: float = 0.1
    scale: float = 1.0
    bound: float = 1.0
    rank: int | None = None

    def start(self, instances: Instances, horizon: int, rngs: Sequence[np.random.Generator]) -> BilinearState:
        count, p = instances.count, instances.job_features.shape[2] * instances.server_features.shape[2]
        noise = self._first_noise(instances)
        servers = instances.servers.sum(axis=1)
        ridge = self._ridge(noise, servers)
        u, v, *scale = self._scaled(instances)
        if self.exploration == "ucb":
            warn_of_norms(u, v, instances.mean_reward)
        part = common_parts(instances.job_features, instances.server_features)
        eye = diagonal(*part, np.ones(count))
        state = BilinearState(
            job_features=u, server_features=v, job_scale=scale[0], server_scale=scale[1], job_parts=part[0],
            server_parts=part[1], noise=noise, ridge=ridge, horizon=horizon, servers=servers, slot=0,
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
        indices(state.job_features, state.server_features, state.job_parts, state.server_parts, state.drawn,
                state.inverse, state.radius, out)  # fmt: skip
        return out

    def learn(self, state: BilinearState, outcome: Outcome) -> BilinearState:
        from bilinq.learning.kernels import observe

        state = self._with_fleet(state, outcome)
        total = np.clip(outcome.total, 0.0, outcome.count) if self.radius == "published" else outcome.total
        gram, inverse, moment = state.gram.copy(), state.inverse.copy(), state.moment.copy()
        log_det, seen, square = state.log_det.copy(), state.seen.copy(), state.square.copy()
        observe(state.job_features, state.server_features, state.job_parts, state.server_parts, outcome.count, total,
                outcome.squares, gram, inverse, moment, log_det, seen, square)  # fmt: skip
        if (state.slot + 1) % REFRESH == 0 or not (state.slot + 1) & state.slot:
            inverse, log_det = _from_scratch(state._replace(gram=gram))
        return self._explore(state._replace(slot=state.slot + 1, gram=gram, inverse=inverse, moment=moment,
                                            log_det=log_det, seen=seen, square=square))  # fmt: skip

    def resumed(self, state: BilinearState) -> BilinearState:
        """Return a merged state with estimate, radius and sample for the next slot."""
        normals = _normals(state.seeds, state.slot // BLOCK, state.moment.shape[1])
        return self._explore(state._replace(normals=normals))

    def width(self, state: BilinearState) -> Array:
        """Return the standard error R ||z_ij|| of each pair's estimate (R, I, J)."""
        u, v = state.job_features, state.server_features
        z = np.einsum("ria,rjb->rijab", u, v).reshape(*u.shape[:2], v.shape[1], -1)
        variance = np.zeros(z.shape[:3])
        for some, members, inverse in _blocks(state, state.inverse):
            own = z[some][..., members]
            variance[some] += np.einsum("rijnp,rnpq,rijnq->rij", own, inverse, own)
        return np.asarray(state.noise[:, None, None] * np.sqrt(variance))

    def beliefs(self, state: BilinearState) -> tuple[Array, Array] | None:
        u, v = state.job_features, state.server_features
        theta = state.estimate.reshape(len(u), u.shape[2], v.shape[2])
        return np.einsum("ria,rab,rjb->rij", u, theta, v), self.width(state)

    def adapt(self, state: BilinearState, instances: Instances) -> BilinearState:
        """Return the state for classes with other features of the same length; all classes share the parameter."""
        u, v = instances.job_features, instances.server_features
        if (u.shape[2], v.shape[2]) != (state.job_features.shape[2], state.server_features.shape[2]):
            raise BadInput(f"features must have lengths {state.job_features.shape[2]} and {state.server_features.shape[2]}"
                           f" as before; got {u.shape[2]} and {v.shape[2]}")  # fmt: skip
        normals = _normals(state.seeds, state.slot // BLOCK, state.moment.shape[1])
        servers = np.maximum(state.servers, instances.servers.sum(axis=1))
        return self._explore(self._rescaled(state, instances)._replace(
            servers=servers, radius=np.zeros(len(u)), normals=normals))  # fmt: skip

    def check(self, state: BilinearState) -> None:
        """Raise `BadState` unless numbers are possible, blocks fit, and `inverse` is that of a positive definite `gram`.

        Shapes must be right already, except for those of `VARYING`.
        """
        for name, (low, high) in LIMITS.items():
            within(name, getattr(state, name), low, high)
        part, fits = (
            (state.job_parts, state.server_parts),
            common_parts(state.job_features, state.server_features, (state.job_parts, state.server_parts)),
        )
        for name, found, right in zip(("job_parts", "server_parts"), part, fits, strict=True):
            if not np.array_equal(found, right):
                raise BadState(f"{name} must be those of the features; got {found[0].tolist()}")
        block = diagonal(*part, np.ones(len(state.ridge))).shape
        for name in ("gram", "inverse"):
            if getattr(state, name).shape != block:
                raise BadState(f"{name} must have shape {block}; got {getattr(state, name).shape}")
        draws, shape = state.normals.shape, (len(state.ridge), BLOCK, block[1])
        if draws not in (shape, (shape[0], 0, shape[2])):
            raise BadState(f"normals must have shape {shape}; got {draws}")
        for _, _, gram in _blocks(state, state.gram):
            if not np.allclose(gram, gram.swapaxes(2, 3), rtol=1e-9, atol=0.0):
                raise BadState("gram must be symmetric")
        least = _eigenvalues(state)[:, 0]
        if (least < 0.5 * state.ridge).any():
            raise BadState(
                f"gram must be positive definite, at least the ridge {state.ridge.min():g}; got {least.min():g}"
            )
        grams, inverses = _blocks(state, state.gram), _blocks(state, state.inverse)
        gap = max(
            float(np.abs(a[2] @ b[2] - np.eye(a[2].shape[3])).max()) for a, b in zip(grams, inverses, strict=True)
        )
        if gap > 1e-6:
            raise BadState(f"inverse must be that of gram; their product differs from one by {gap:.1e}")

    def _explore(self, state: BilinearState) -> BilinearState:
        """Return `state` with estimate, noise, radius and sample for the next slot."""
        from bilinq.learning import kernels

        theta = np.empty_like(state.estimate)
        up, vp = state.job_parts, state.server_parts
        kernels.estimate(up, vp, state.inverse, state.moment, theta)
        noise, drawn, radius, normals = state.noise, theta, state.radius, state.normals
        if self.noise == "estimate":
            noise = np.empty_like(noise)
            kernels.noise_scale(up, vp, state.gram, state.moment, theta, state.ridge, state.seen, state.square,
                                PRIOR_NOISE, noise)  # fmt: skip
        if self.exploration == "thompson":
            drawn = np.empty_like(theta)
            if state.slot % BLOCK == 0 or not normals.shape[1]:  # there are none if it did not draw so far
                normals = _normals(state.seeds, state.slot // BLOCK, theta.shape[1])
            kernels.sample(up, vp, state.inverse, theta, normals, state.slot % BLOCK, self.scale * noise, drawn)
        elif self.exploration == "ucb":
            radius = self._radius(state, noise)
        if self.rank is not None:
            drawn = _of_rank(drawn, self.rank, state.job_features, state.server_features)
        return state._replace(estimate=theta, noise=noise, drawn=drawn, radius=radius, normals=normals)

    def _radius(self, state: BilinearState, noise: Array) -> Array:
        """Return beta for the next slot, Eq. (13) to (15)."""
        t, T, n, p = state.slot + 1, state.horizon, state.servers, state.moment.shape[1]
        if self.radius == "paper":
            return np.asarray(np.sqrt(p * np.log(t * T)) + np.sqrt(n))
        if self.radius == "published":
            return np.asarray(0.1 * np.sqrt(p * np.log((1.0 + n * t) * T)) + 1.0)
        if not isinstance(self.radius, str):
            return np.full(n.shape, self.radius(t) if callable(self.radius) else self.radius)
        spread = np.sqrt(state.log_det + 2.0 * np.log(1.0 / self.confidence))
        return np.asarray(noise * spread + self.bound * np.sqrt(state.ridge))

    def _scaled(self, instances: Instances) -> tuple[Array, Array, Array, Array]:
        """Return the scaled features of jobs and servers and their scales, Eq. (51); one for the radii of the paper."""
        u, v = instances.job_features, instances.server_features
        if self.radius not in ("paper", "published"):
            a, b = scales(u), scales(v)
        else:
            a, b = np.ones_like(u[:, 0]), np.ones_like(v[:, 0])
        return np.ascontiguousarray(u / a[:, None]), np.ascontiguousarray(v / b[:, None]), a, b

    def _with_fleet(self, state: BilinearState, outcome: Outcome) -> BilinearState:
        """Return the state for the most servers seen at once, n in the paper's radii; a live scheduler learns it as it runs.

        The paper's ridge is n as well. What was added to it so far counts as if it had been there from the start.
        """
        if self.radius not in ("paper", "published") or outcome.capacity is None:
            return state
        n = np.maximum(state.servers, outcome.capacity.sum(axis=1))
        if (n == state.servers).all() or self.radius == "published" or self.regularization is not None:
            return state._replace(servers=n)
        gram = state.gram + diagonal(state.job_parts, state.server_parts, n - state.ridge)
        grown = state._replace(servers=n, ridge=n.copy(), gram=gram)
        inverse, log_det = _from_scratch(grown)
        return grown._replace(inverse=inverse, log_det=log_det)

    def _rescaled(self, state: BilinearState, instances: Instances) -> BilinearState:
        """Return `state` for other features, as if their scale and their blocks had been the same from the start."""
        u, v, *scale = self._scaled(instances)
        before = state.job_parts, state.server_parts
        part = common_parts(instances.job_features, instances.server_features, before)
        after = state._replace(job_features=u, server_features=v, job_scale=scale[0], server_scale=scale[1],
                               job_parts=part[0], server_parts=part[1])  # fmt: skip
        with np.errstate(over="ignore"):
            change = state.job_scale / scale[0], state.server_scale / scale[1]
            ratio = np.minimum((change[0][:, :, None] * change[1][:, None]).reshape(state.moment.shape), STEEPEST)
        if (ratio == 1.0).all() and all(map(np.array_equal, part, before)):
            return after
        gram, place = diagonal(*part, state.ridge), places(*part, len(u))
        for some, members, old in _blocks(state, state.gram):
            for r, own in zip(some, old - state.ridge[some, None, None, None] * np.eye(members.shape[1]), strict=True):
                factor = ratio[r, members]
                columns = place[r, members][:, None, :]
                gram[r, members[:, :, None], columns] += own * factor[:, :, None] * factor[:, None, :]
        after = after._replace(gram=gram, moment=state.moment * ratio)
        inverse, log_det = _from_scratch(after)
        return after._replace(inverse=inverse, log_det=log_det)

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


def _blocks(state: BilinearState, rows: Array) -> Iterator[tuple[IntArray, IntArray, Array]]:
    """Yield replications (some,), coordinates (n, b) of blocks of one size, and these blocks of `rows` (some, n, b, b)."""
    for some, members in block_groups(state.job_parts, state.server_parts, len(rows)):
        yield some, members, rows[some[:, None, None], members, : members.shape[1]]


def _from_scratch(state: BilinearState) -> tuple[Array, Array]:
    """Return inverse and log-determinant (relative to the start) of the Gram matrices."""
    rows, log_det = np.zeros_like(state.gram), np.zeros(len(state.gram))
    for some, members, gram in _blocks(state, state.gram):
        inverse = np.linalg.inv(gram)
        rows[some[:, None, None], members, : members.shape[1]] = 0.5 * (inverse + inverse.swapaxes(2, 3))
        log_det[some] += np.linalg.slogdet(gram)[1].sum(axis=1)
    return rows, log_det - state.gram.shape[1] * np.log(state.ridge)


def _eigenvalues(state: BilinearState) -> Array:
    """Return the eigenvalues of the Gram matrices in ascending order (R, p)."""
    found = np.empty(state.moment.shape)
    for some, members, gram in _blocks(state, state.gram):
        found[some[:, None], members.ravel()] = np.linalg.eigvalsh(gram).reshape(len(some), -1)
    return np.sort(found, axis=1)


def _of_rank(theta: Array, rank: int, u: Array, v: Array) -> Array:
    """Return parameters (R, p) whose rewards u_i theta v_j are the best approximations of a rank to those of `theta`.

    What no pair can show stays as it is: where features are longer than there are classes, a sample is mostly that.
    """
    whole = theta.reshape(len(theta), u.shape[2], v.shape[2])
    (size_u, base_u), (size_v, base_v) = (np.linalg.svd(x, full_matrices=False)[1:] for x in (u, v))
    inside = base_u @ whole @ base_v.transpose(0, 2, 1)  # in the directions of the features of known classes
    scale = size_u[:, :, None] * size_v[:, None, :]
    left, size, right = np.linalg.svd(scale * inside, full_matrices=False)
    size[:, rank:] = 0.0
    shown = scale > 1e-9 * scale.max(axis=(1, 2), keepdims=True)
    best = np.divide((left * size[:, None, :]) @ right, scale, out=inside.copy(), where=shown)
    return np.asarray((whole + base_u.transpose(0, 2, 1) @ (best - inside) @ base_v).reshape(theta.shape))


def _normals(seeds: Sequence[int], block: int, size: int) -> Array:
    """Return the standard normal draws (R, BLOCK, size) of a block of slots."""
    return np.array([np.random.default_rng((seed, block)).standard_normal((BLOCK, size)) for seed in seeds])


def merged(states: Sequence[BilinearState]) -> BilinearState:
    """Return what one learner would know that had seen the observations of several: their sums, exactly.

    Gram matrix, moment and counts are sums over observations, so shards that learn apart need to exchange nothing else; the
    ridge counts once. The states must be of learners with equal features, scales, blocks and ridge, such as shards of one
    scheduler. Estimate and inverse are computed from the sums; explore again before the next decision (`Bilinear.resumed`).
    """
    first = states[0]
    for name in ("job_features", "server_features", "job_scale", "server_scale", "job_parts", "server_parts", "ridge"):
        if not all(np.array_equal(getattr(one, name), getattr(first, name)) for one in states):
            raise BadInput(f"states must have equal {name} to be merged; they differ")
    own = diagonal(first.job_parts, first.server_parts, first.ridge)
    sums = {name: np.sum([getattr(one, name) for one in states], axis=0) for name in ("moment", "seen", "square")}
    total = first._replace(gram=own + np.sum([one.gram - own for one in states], axis=0), **sums)
    inverse, log_det = _from_scratch(total)
    return total._replace(inverse=inverse, log_det=log_det, slot=max(one.slot for one in states))


class Health(NamedTuple):
    """How much a bilinear learner has seen and how well that determines the model.

    `noise` is the estimated standard deviation of rewards, in the user's units. `smallest` and `largest` are the extreme
    eigenvalues of Lambda, Eq. (11), for scaled features: the smallest is the ridge as long as some direction of features
    was never seen.
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
    values = _eigenvalues(learnt)[0]
    return Health(int(learnt.seen[0]), float(unit * learnt.noise[0]), float(values[0]), float(values[-1]))
