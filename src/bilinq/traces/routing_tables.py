"""Tables for routing: every job with its reward on every server class, from public data sets of language models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bilinq.arrays import Array, count, finite, non_negative, positive, shaped, short
from bilinq.errors import BadInput
from bilinq.extras import optional_imports
from bilinq.traces.lines import Line, csv_lines, json_lines

Names: TypeAlias = NDArray[np.str_]
Embedding: TypeAlias = Callable[[Sequence[str]], ArrayLike]

PARETOBANDIT = ("ParetoBandit, https://arxiv.org/abs/2604.00136, val_k4.jsonl", "Apache-2.0")
MMLU = ("RouteLLM, https://github.com/lm-sys/RouteLLM, answers to MMLU", "Apache-2.0")
HASHED = 2**15  # columns of the hashed words, before they are reduced to a few dimensions


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RoutingTable:
    """Jobs and what each of them would earn on every server class.

    Attributes
    ----------
    reward : (N, J) array
    job_class : (N,) array of str
    servers : tuple of str
        Names of the server classes, the columns of `reward`.
    source, licence : str
    price : (N, J) array, optional
        What the service costs, in dollars.
    text : tuple of str, optional
        The prompt of each job.
    vectors : (N, d) array, optional
        Features of each job; `with_features` fills them from the text.
    """

    reward: Array
    job_class: Names
    servers: tuple[str, ...]
    source: str
    licence: str
    price: Array | None = None
    text: tuple[str, ...] | None = None
    vectors: Array | None = None

    def __post_init__(self) -> None:
        number, width = len(self.job_class), len(self.servers)
        if finite("reward", self.reward).shape != (number, width):
            raise BadInput(f"reward must have shape (jobs, servers) = {(number, width)}; got {self.reward.shape}")
        if self.price is not None and non_negative("price", self.price).shape != self.reward.shape:
            raise BadInput(f"price must have the shape of reward, {self.reward.shape}; got {self.price.shape}")
        if self.text is not None and len(self.text) != number:
            raise BadInput(f"text must have one entry for each of {number} jobs; got {len(self.text)}")
        if self.vectors is not None and (self.vectors.ndim != 2 or len(self.vectors) != number):
            raise BadInput(f"vectors must have shape ({number}, dimensions); got {self.vectors.shape}")

    def __len__(self) -> int:
        return len(self.job_class)

    def __repr__(self) -> str:
        classes = len(np.unique(self.job_class))
        return f"RoutingTable({len(self)} jobs in {classes} classes, servers {', '.join(self.servers)}; {self.source})"

    def features(self, dimensions: int = 16, *, seed: int = 0, embed: Embedding | None = None) -> Array:
        """Return features of the jobs (N, d), made from their texts.

        Parameters
        ----------
        dimensions : int
            Directions that are kept of the hashed words and pairs of words, by a truncated singular value decomposition
            (scikit-learn, `pip install 'bilinq[text]'`).
        seed : int
            Of the decomposition's start.
        embed : callable, optional
            Your own embedding in place of that: a function of N texts that returns an array (N, d).

        Notes
        -----
        Each column has mean 0 and variance 1/d over the table, so a vector has length 1 in the root mean square. There is
        no constant column: a model that needs an offset has the class of the job for it, or adds ones.
        """
        if self.text is None:
            raise BadInput("features need the texts of the jobs; got a table with text = None")
        raw = _hashed(self.text, count("dimensions", dimensions), seed) if embed is None else embed(self.text)
        found = finite("embed(text)", raw)
        if found.ndim != 2 or len(found) != len(self):
            raise BadInput(f"embed(text) must have shape ({len(self)}, dimensions); got {found.shape}")
        return _standardised(found)

    def with_features(self, dimensions: int = 16, *, seed: int = 0, embed: Embedding | None = None) -> "RoutingTable":
        """Return the table with `vectors` = `features(...)`, which later draws keep."""
        return replace(self, vectors=self.features(dimensions, seed=seed, embed=embed))

    def rows(self, chosen: ArrayLike) -> "RoutingTable":
        """Return the jobs with the numbers `chosen`, in this order."""
        k = np.asarray(chosen, np.int64)
        return replace(
            self, reward=self.reward[k], job_class=self.job_class[k],
            price=None if self.price is None else self.price[k],
            text=None if self.text is None else tuple(self.text[i] for i in k.tolist()),
            vectors=None if self.vectors is None else self.vectors[k],
        )  # fmt: skip

    def draw(self, jobs: int, rng: np.random.Generator, *, repeat: bool = False) -> "RoutingTable":
        """Return `jobs` rows in random order.

        Default: passes over the table, each in an order of its own, so that no job appears twice before all have appeared
        once. With `repeat` every row is drawn anew from the whole table.
        """
        number = count("jobs", jobs)
        if repeat:
            return self.rows(rng.integers(len(self), size=number))
        passes = [rng.permutation(len(self)) for _ in range(-(-number // len(self)))]
        return self.rows(np.concatenate(passes)[:number])

    def workload(self, *, arrival: ArrayLike, duration: ArrayLike, servers: Mapping[str, int]) -> dict[str, Any]:
        """Return the keyword arguments of `Workload` for these jobs.

        Parameters
        ----------
        arrival : (N,) array
            Times of arrival, not falling.
        duration : float, (J,) or (N, J) array
            Server time of each job on each server class.
        servers : mapping
            Servers in each class by name; a server class of the table that is not named is left out.
        """
        for name in servers:
            if name not in self.servers:
                raise BadInput(f"servers must be among {', '.join(self.servers)}; got {name!r}")
        columns = [self.servers.index(name) for name in servers]
        times = shaped("arrival", finite("arrival", arrival), (len(self),))
        if (np.diff(times) < 0).any():
            raise BadInput(f"arrival must not fall; got a fall after job {int(np.argmax(np.diff(times) < 0))}")
        length = shaped("duration", positive("duration", duration), self.reward.shape)
        return {
            "arrival": times, "reward": self.reward[:, columns], "duration": length[:, columns], "servers": dict(servers),
            "features": self.vectors, "job_class": self.job_class,
        }  # fmt: skip


def load_paretobandit(folder: str | PathLike[str]) -> RoutingTable:
    """Return the prompts of ParetoBandit: judged reward in [0, 1] and price in dollars of each language model's answer.

    `folder` has the file `val_k4.jsonl`. The class of a job is the source of its prompt.
    """
    lines = list(json_lines(Path(folder) / "val_k4.jsonl"))
    servers = tuple(lines[0].record("arms"))
    table = np.array([_arms(line, servers) for line in lines])  # (N, J, 2)
    return RoutingTable(
        reward=np.ascontiguousarray(table[:, :, 0]), price=np.ascontiguousarray(table[:, :, 1]), servers=servers,
        job_class=np.array([line.text("source") for line in lines]), text=tuple(line.text("prompt") for line in lines),
        source=PARETOBANDIT[0], licence=PARETOBANDIT[1],
    )  # fmt: skip


def load_mmlu(folder: str | PathLike[str]) -> RoutingTable:
    """Return the questions of MMLU: reward 1 where a language model's answer is right and 0 where it is wrong.

    `folder` has a file `mmlu_<subject>.csv` for each subject. The class of a job is its subject.
    """
    files = sorted(Path(folder).glob("mmlu_*.csv"))
    if not files:
        raise BadInput(f"{Path(folder)}: must contain files named mmlu_<subject>.csv; got none")
    found = [(file.stem.removeprefix("mmlu_"), line) for file in files for line in csv_lines(file, ("prompt",))]
    servers = tuple(name for name in found[0][1].values if name != "prompt")
    return RoutingTable(
        reward=np.array([[_right(line, name) for name in servers] for _, line in found]), servers=servers,
        job_class=np.array([subject for subject, _ in found]), text=tuple(line.text("prompt") for _, line in found),
        source=MMLU[0], licence=MMLU[1],
    )  # fmt: skip


def _arms(line: Line, servers: Sequence[str]) -> list[tuple[float, float]]:
    arms = line.record("arms")
    if set(arms) != set(servers):
        raise line.fault(
            f"arms must be those of the first line, {', '.join(servers)}; got {short(', '.join(arms), 200)}"
        )
    return [_arm(line, name, arms[name]) for name in servers]


def _arm(line: Line, name: str, arm: object) -> tuple[float, float]:
    if not isinstance(arm, dict):
        raise line.fault(f"arms[{name!r}] must be an object; got {short(arm)}")
    reward = line.as_number(f"arms[{name!r}].reward", arm.get("reward"), most=1.0)
    return reward, line.as_number(f"arms[{name!r}].cost", arm.get("cost"))


def _right(line: Line, name: str) -> float:
    answer = line.text(name)
    if answer not in ("True", "False"):
        raise line.fault(f"{name} must be True or False; got {answer!r}")
    return float(answer == "True")


def _hashed(text: Sequence[str], dimensions: int, seed: int) -> Array:
    with optional_imports():
        words, parts = import_module("sklearn.feature_extraction.text"), import_module("sklearn.decomposition")
    counts = words.HashingVectorizer(n_features=HASHED, ngram_range=(1, 2)).transform(text)
    if dimensions >= min(counts.shape):
        raise BadInput(f"dimensions must be below the number of jobs, {len(text)}; got {dimensions}")
    if not counts.nnz:
        raise BadInput("texts must have words of at least two letters; pass embed for others")
    reduced = parts.TruncatedSVD(dimensions, algorithm="arpack", random_state=seed).fit_transform(counts)
    return np.asarray(reduced, np.float64)


def _standardised(raw: Array) -> Array:
    """Return columns with mean 0 and variance 1/d; a constant column becomes zero."""
    centred = raw - raw.mean(axis=0)
    spread = centred.std(axis=0)
    spread[spread <= 1e-12 * np.abs(raw).max(initial=1.0)] = np.inf
    return np.ascontiguousarray(centred / (spread * np.sqrt(raw.shape[1])))
