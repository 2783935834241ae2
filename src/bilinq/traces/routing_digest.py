"""The digest of a routing table: aggregates by class that ship with bilinq, and synthetic jobs drawn from them."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from bilinq.arrays import Array, IntArray, count, non_negative, one_of
from bilinq.errors import BadInput
from bilinq.traces.digest_files import parse
from bilinq.traces.routing_tables import RoutingTable

Numbers = tuple[float, ...]
SHIPPED_TABLES = ("paretobandit", "mmlu")
FEWEST = 5  # jobs of a class of its own: the mean over one job would be the job itself, not an aggregate
OTHERS = "others"


@dataclass(frozen=True)
class ClassMoments:
    """Aggregates of one class: number of jobs, mean (J,) and covariance (J, J) of rewards, mean price and features."""

    name: str
    jobs: int
    reward: Numbers
    covariance: tuple[Numbers, ...]
    price: Numbers | None
    features: Numbers | None

    def __post_init__(self) -> None:
        count("jobs", self.jobs)
        size = len(self.reward)
        if non_negative("reward", self.reward).max(initial=0.0) > 1.0:
            raise BadInput(f"reward must lie in [0, 1]; got {max(self.reward):g}")
        if [len(row) for row in self.covariance] != [size] * size:
            raise BadInput(f"covariance must have {size} rows and columns, as many as reward; got {self.covariance}")


@dataclass(frozen=True)
class TableDigest:
    """Aggregate figures of a `RoutingTable`, without any row of it.

    Attributes
    ----------
    source, licence : str
    rewards : "graded" or "binary"
        Rewards anywhere in [0, 1], or only 0 and 1 (two server classes).
    servers : tuple of str
    classes : tuple of ClassMoments
        By name.
    feature_covariance : tuple of rows, optional
        Of the features within a class, all classes together.
    """

    source: str
    licence: str
    rewards: str
    servers: tuple[str, ...]
    classes: tuple[ClassMoments, ...]
    feature_covariance: tuple[Numbers, ...] | None

    def __post_init__(self) -> None:
        one_of("rewards", self.rewards, ("graded", "binary"))
        if self.rewards == "binary" and len(self.servers) != 2:
            raise BadInput(f"servers must be two where rewards are binary; got {len(self.servers)}")
        for k, one in enumerate(self.classes):
            if len(one.reward) != len(self.servers):
                raise BadInput(f"classes[{k}].reward must have {len(self.servers)} entries; got {len(one.reward)}")

    @classmethod
    def of(cls, table: RoutingTable) -> "TableDigest":
        """Return the digest of a table with rewards in [0, 1]; numbers are rounded to six digits.

        Classes with fewer than five jobs are joined as "others", which are left out if they are fewer than five together.
        """
        groups = _groups(table)
        return cls(
            source=table.source, licence=table.licence, servers=table.servers,
            rewards="binary" if np.isin(table.reward, (0.0, 1.0)).all() else "graded",
            classes=tuple(_moments(name, table, rows) for name, rows in groups.items()),
            feature_covariance=_within(table.vectors, list(groups.values())),
        )  # fmt: skip

    @classmethod
    def shipped(cls, name: str) -> "TableDigest":
        """Return a digest that comes with bilinq: "paretobandit" or "mmlu"."""
        file = f"{one_of('name', name, SHIPPED_TABLES)}.json"
        return parse(cls, files("bilinq.traces").joinpath("data", file).read_text(encoding="utf-8"), file)

    def draw(self, jobs: int, seed: int | np.random.Generator = 0) -> RoutingTable:
        """Return a table of synthetic jobs.

        The class is drawn by its frequency. Graded rewards are Gaussian with the correlation of the class, clipped to
        [0, 1]; centre and width are chosen so that the clipped reward has the mean and the variance of the class.
        Clipping weakens correlations. Binary rewards are drawn from the joint chances of the two servers, which mean and
        covariance determine. Prices are the means of the class. Features are Gaussian around the mean of the class, and
        say nothing about rewards beyond the class.
        """
        rng, number = np.random.default_rng(seed), count("jobs", jobs)
        frequency = np.array([one.jobs for one in self.classes], np.float64)
        code = rng.choice(len(frequency), size=number, p=frequency / frequency.sum())
        draw_rewards = _binary if self.rewards == "binary" else _graded
        priced = all(one.price is not None for one in self.classes)
        return RoutingTable(
            reward=draw_rewards(self._array("reward"), self._array("covariance"), code, rng), servers=self.servers,
            price=self._array("price")[code] if priced else None, vectors=self._vectors(code, rng),
            job_class=np.array([one.name for one in self.classes])[code], licence=self.licence,
            source=f"synthetic, from aggregates of {self.source}",
        )  # fmt: skip

    def _array(self, name: Literal["reward", "covariance", "price", "features"]) -> Array:
        return np.array([getattr(one, name) for one in self.classes], np.float64)

    def _vectors(self, code: IntArray, rng: np.random.Generator) -> Array | None:
        if self.feature_covariance is None:
            return None
        root = _root(np.array(self.feature_covariance))
        return np.asarray(self._array("features")[code] + rng.standard_normal((code.size, len(root))) @ root)


def digest_table(name: str, jobs: int = 2000, seed: int | np.random.Generator = 0) -> RoutingTable:
    """Return synthetic jobs that have the classes and mean rewards of a public table, without its files.

    Parameters
    ----------
    name : "paretobandit" or "mmlu"
    jobs : int
        Number of jobs.
    seed : int or generator

    See Also
    --------
    TableDigest.draw : what is kept of the real table.

    Examples
    --------
    >>> table = digest_table("mmlu", jobs=5000, seed=1)
    >>> table.servers[1], table.reward.mean(axis=0).round(1)
    ('gpt-4-1106-preview', array([0.7, 0.8]))
    """
    return TableDigest.shipped(name).draw(jobs, seed)


def _groups(table: RoutingTable) -> dict[str, IntArray]:
    """Return the rows of each class that is large enough, by name."""
    names, code, size = np.unique(table.job_class, return_inverse=True, return_counts=True)
    joined = np.where(size < FEWEST, OTHERS, names)[code]
    groups = {str(name): np.flatnonzero(joined == name) for name in np.unique(joined)}
    large = {name: rows for name, rows in groups.items() if len(rows) >= FEWEST}
    if not large:
        raise BadInput(f"table must have at least {FEWEST} jobs; got {len(table)}")
    return large


def _moments(name: str, table: RoutingTable, rows: IntArray) -> ClassMoments:
    reward = table.reward[rows]
    centred = reward - reward.mean(axis=0)
    return ClassMoments(
        name=name, jobs=len(rows), reward=_rounded(reward.mean(axis=0)),
        covariance=_rounded(centred.T @ centred / len(rows)),
        price=None if table.price is None else _rounded(table.price[rows].mean(axis=0)),
        features=None if table.vectors is None else _rounded(table.vectors[rows].mean(axis=0)),
    )  # fmt: skip


def _within(vectors: Array | None, groups: list[IntArray]) -> tuple[Numbers, ...] | None:
    if vectors is None:
        return None
    centred = np.concatenate([vectors[rows] - vectors[rows].mean(axis=0) for rows in groups])
    rows: tuple[Numbers, ...] = _rounded(centred.T @ centred / len(centred))
    return rows


def _rounded(array: Array) -> Any:
    """Return the array as tuples of numbers with six digits after the point, or six that count for smaller numbers."""
    if array.ndim > 1:
        return tuple(_rounded(row) for row in array)
    return tuple(float(f"{x:.6g}") if abs(x) < 1e-2 else round(float(x), 6) for x in array)


def _root(covariance: Array) -> Array:
    """Return R with R' R = covariance (..., J, J); a negative eigenvalue, which rounding leaves, counts as zero."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[..., None] * np.swapaxes(vectors, -1, -2))


def _binary(mean: Array, covariance: Array, code: IntArray, rng: np.random.Generator) -> Array:
    both = covariance[:, 0, 1] + mean[:, 0] * mean[:, 1]
    first = rng.random(code.size) < mean[code, 0]
    with np.errstate(invalid="ignore", divide="ignore"):  # a server that is always or never right
        chance = np.where(first, (both / mean[:, 0])[code], ((mean[:, 1] - both) / (1.0 - mean[:, 0]))[code])
    return np.stack([first, rng.random(code.size) < chance], axis=1).astype(np.float64)


def _graded(mean: Array, covariance: Array, code: IntArray, rng: np.random.Generator) -> Array:
    spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    scale = np.where(spread > 0, spread, 1.0)
    root = _root(covariance / (scale[:, :, None] * scale[:, None, :]))
    z = np.einsum("nk,nkj->nj", rng.standard_normal((code.size, mean.shape[1])), root[code])
    centre, width = _before_clipping(mean, spread)
    return np.asarray(np.clip(centre[code] + width[code] * z, 0.0, 1.0))


def _before_clipping(mean: Array, spread: Array) -> tuple[Array, Array]:
    """Return centre and width of Gaussians that have `mean` and `spread` after they are clipped to [0, 1].

    The clipped mean grows with the centre, and at a fixed mean the clipped spread grows with the width: two bisections.
    """
    low, high = np.full(mean.shape, 1e-4), np.full(mean.shape, 1e4)
    for _ in range(40):
        width = np.sqrt(low * high)
        narrow = _clipped(_centre(mean, width), width)[1] < spread
        low, high = np.where(narrow, width, low), np.where(narrow, high, width)
    width = np.where(spread > 0, np.sqrt(low * high), 0.0)
    return np.where(spread > 0, _centre(mean, np.sqrt(low * high)), mean), width


def _centre(mean: Array, width: Array) -> Array:
    low, high = -8.0 * width, 1.0 + 8.0 * width
    for _ in range(50):
        middle = (low + high) / 2.0
        below = _clipped(middle, width)[0] < mean
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2.0


def _clipped(centre: Array, width: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of a Gaussian that is clipped to [0, 1]."""
    from scipy.special import ndtr  # imported here: it takes half as long to load as all traces together

    a, b = -centre / width, (1.0 - centre) / width
    pdf_a, pdf_b = (np.exp(-(x**2) / 2.0) / np.sqrt(2.0 * np.pi) for x in (a, b))
    inside, above = ndtr(b) - ndtr(a), ndtr(-b)
    mean = centre * inside + width * (pdf_a - pdf_b) + above
    square = (centre**2 + width**2) * inside + width * (centre * pdf_a - (centre + 1.0) * pdf_b) + above
    return mean, np.sqrt(np.maximum(square - mean**2, 0.0))
