"""Tables of rewards as problems: observations in a file (`reward_table`), and measured speeds of GPUs (`gpu_table`)."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import finite, non_negative, one_of, positive, scalar, short
from bilinq.errors import BadInput
from bilinq.extras import optional_imports
from bilinq.problem import Problem
from bilinq.traces.reward_model import PerClass, RewardTable, build, scaled_features


def reward_table(
    path: Any,
    *,
    servers: int | Mapping[str, int],
    arrival_rate: PerClass | None = None,
    time: str | None = None,
    slot: float | None = None,
    service_rate: PerClass = 1.0,
    holding_cost: PerClass = 1.0,
    job: str = "job",
    server: str = "server",
    reward: str = "reward",
    job_features: Sequence[str] | None = None,
    server_features: Sequence[str] | None = None,
    reward_range: tuple[float, float] | None = None,
    noise: float | None = None,
    unseen: Literal["error", "predicted"] = "error",
) -> RewardTable:
    r"""Read observed rewards, a row for each, from a file or a DataFrame and return a problem with its arrivals.

    A file is read a piece at a time: memory grows with the pairs, not with the rows (but for 16 bytes of each row
    with `time`). Class names are text: "007" is not 7.

    Parameters
    ----------
    path : path, DataFrame, PyArrow table or mapping of columns
        A file is CSV in UTF-8 with a header, also packed as `.csv.gz`, or Parquet.
    servers : int or mapping
        Servers in each class, or in each by name; rows of server classes that a mapping does not name are left out.
    arrival_rate : float or mapping
        Jobs per slot in all, shared equally by the job classes; or of each class by name, and rows of other job classes
        are left out.
    time, slot : str and float
        In place of `arrival_rate`: the column with the arrival time of the job of a row, and the length of a slot in
        its units. The jobs then arrive as recorded, with one unit of service each.
    service_rate, holding_cost : float or mapping
        As in `Problem`, for all job classes or by name.
    job, server, reward : str
        The columns with the names of the classes and with the observed reward.
    job_features, server_features : sequences of str, optional
        Columns with the features of a job class and of a server class, the same in all its rows; default: one-hot.
        A constant feature needs a column of ones. Features are scaled, which does not change what a bilinear model can
        express: each column by its largest entry, then all by the longest vector.
    reward_range : (low, high), optional
        The rewards that become 0 and 1. Default: rewards that all lie in [-1, 1] stay as they are, and others are
        scaled by the smallest and the largest observed.
    noise : float, optional
        Standard deviation of an observation, in the file's units. Default: each pair's own, and pooled over all pairs
        for one with a single observation.
    unseen : "error" or "predicted"
        What to do with a pair without observations: raise an error, or use the prediction of least squares, bilinear in
        the features and clipped to the range of the rewards.

    Raises
    ------
    BadInput
        Naming the file and, where there is one, the row (counted from 1, without the header) and the value.

    Examples
    --------
    >>> from pathlib import Path
    >>> rows = "job,server,reward\nshort,cpu,7\nshort,cpu,9\nshort,gpu,12\nlong,cpu,2\nlong,gpu,10\n"
    >>> characters = Path("rewards.csv").write_text(rows)
    >>> table = reward_table("rewards.csv", servers=2, arrival_rate=0.5)
    >>> table.problem.mean_reward, table.scale
    (array([[0.6, 1. ],
           [0. , 0.8]]), Scale(low=2.0, high=12.0))
    """
    with optional_imports():
        from bilinq.traces.reward_rows import FileClasses, Tally, chunks, source_name

    _check_clock(arrival_rate, time, slot)
    one_of("unseen", unseen, ("error", "predicted"))
    jobs = FileClasses(job, _columns("job_features", job_features), _named(arrival_rate))
    others = FileClasses(server, _columns("server_features", server_features), _named(servers))
    tally = Tally(jobs, others, reward, time, _bounds(reward_range))
    file = source_name(path)
    numbers = [reward, *jobs.features, *others.features, *(() if time is None else (time,))]
    for chunk in chunks(path, (job, server), numbers):
        tally.add(chunk)
    tally.check_seen(file)
    return build(tally, file, servers=servers, arrival_rate=arrival_rate, slot=slot, service_rate=service_rate,
                 holding_cost=holding_cost, noise=noise, unseen=unseen)  # fmt: skip


def _check_clock(arrival_rate: PerClass | None, time: str | None, slot: float | None) -> None:
    if (arrival_rate is None) == (time is None) or (time is None) != (slot is None):
        given = f"arrival_rate = {short(arrival_rate)}, time = {time!r}, slot = {slot!r}"
        raise BadInput(f"either arrival_rate or time and slot must be given; got {given}")
    if slot is not None:
        scalar("slot", slot, positive)


def _columns(name: str, value: Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not value or not all(isinstance(column, str) for column in value):
        raise BadInput(f"{name} must be a list of column names; got {short(value)}")
    return tuple(value)


def _named(value: object) -> list[str] | None:
    return [str(name) for name in value] if isinstance(value, Mapping) else None


def _bounds(reward_range: tuple[float, float] | None) -> tuple[float, float] | None:
    if reward_range is None:
        return None
    bounds = finite("reward_range", reward_range)
    if bounds.shape != (2,) or not bounds[0] < bounds[1]:
        raise BadInput(f"reward_range must be (low, high) with low below high; got {short(reward_range)}")
    return float(bounds[0]), float(bounds[1])


def gpu_table(
    *,
    servers: ArrayLike = (4, 4, 4),
    load: float = 0.7,
    service_rate: float = 0.05,
    noise: float = 0.1,
    features: Literal["known", "one-hot"] = "known",
) -> Problem:
    """Return a cluster of K80, P100 and V100 GPUs that trains 26 kinds of jobs, all equally often.

    The mean reward of a job on a GPU is its measured speed (steps per second, alone on the GPU) relative to its fastest
    GPU. The measurements are those of Gavel (Stanford FutureData, MIT licence); arrivals, lengths and noise are not
    measured.

    Parameters
    ----------
    servers : (3,) array
        GPUs of each kind.
    load : float
        Traffic intensity relative to the number of GPUs.
    service_rate : float
        Chance that a slot on a GPU completes a job, whatever the GPU.
    noise : float
        Standard deviation of the relative speed observed in a slot.
    features : "known" or "one-hot"
        What is known of a job before its first run (model family, and doublings of the batch size within the family),
        or nothing. GPUs are one-hot: with three of them other features would not be better.

    Examples
    --------
    >>> problem = gpu_table(load=0.5)
    >>> problem.job_names[20], problem.mean_reward[20].round(2)
    ('Recommendation (512)', array([0.67, 1.  , 0.48]))
    """
    one_of("features", features, ("known", "one-hot"))
    data = json.loads((files("bilinq.traces") / "data" / "gavel.json").read_text(encoding="utf-8"))
    number, rate = non_negative("servers", servers), scalar("service_rate", service_rate, positive)
    jobs, total = data["jobs"], scalar("load", load, positive) * number.sum() * rate
    return Problem(
        arrival_rate=np.full(len(jobs), total / len(jobs)), servers=number, service_rate=rate, noise=noise,
        mean_reward=[job["relative"] for job in jobs], job_names=[job["name"] for job in jobs], server_names=data["gpus"],
        job_features=scaled_features([job["features"] for job in jobs]) if features == "known" else None,
    )  # fmt: skip
