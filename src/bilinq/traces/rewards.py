"""A table of observed rewards becomes a problem with its arrivals: `reward_table`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

from bilinq.arrays import finite, one_of, positive, scalar, short
from bilinq.errors import BadInput
from bilinq.traces.reward_model import PerClass, RewardTable, Scale, Terms, build

__all__ = ["RewardTable", "Scale", "reward_table"]


def reward_table(
    path: str | PathLike[str],
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
    r"""Read observed rewards, a row for each, from a CSV or Parquet file and return a problem with its arrivals.

    The file is read a piece at a time: memory grows with the pairs, not with the rows (but for 16 bytes of each row
    with `time`). Class names are text: "007" is not 7.

    Parameters
    ----------
    path : path
        A CSV file in UTF-8 with a header, also packed as `.csv.gz`, or a Parquet file.
    servers : int or mapping
        Servers in each class, or in each by name; rows of server classes that a mapping does not name are left out.
    arrival_rate : float or mapping
        Jobs per slot in all, shared equally by the job classes; or of each class by name, and rows of other job classes
        are left out.
    time, slot : str and float
        In place of `arrival_rate`: the column with the time at which the job of a row came, and how long a slot is in
        its units. The jobs then come as recorded, one unit of service each.
    service_rate, holding_cost : float or mapping
        As in `Problem`, for all job classes or by name.
    job, server, reward : str
        The columns with the names of the classes and with the observed reward.
    job_features, server_features : sequences of str, optional
        Columns with what is known of a job class and of a server class, the same in all its rows; one-hot unless
        given. There is no constant among them unless a column of ones is. They are scaled, which a bilinear model does
        not notice: each column by its largest entry, then all by the longest vector.
    reward_range : (low, high), optional
        The rewards that become 0 and 1. Unless given, rewards that all lie in [-1, 1] stay as they are, and others
        are scaled by the smallest and the largest observed.
    noise : float, optional
        Standard deviation of an observation, in the file's units. Unless given it is each pair's own, and pooled over
        all pairs where one has a single observation.
    unseen : "error" or "predicted"
        What becomes of a pair without observations: an error, or the prediction of least squares, bilinear in the
        features and kept within the range of the rewards.

    Raises
    ------
    BadInput
        Naming the file and, where there is one, the row (counted from 1, without the header) and the value.

    Examples
    --------
    >>> rows = "job,server,reward\nshort,cpu,7\nshort,cpu,9\nshort,gpu,12\nlong,cpu,2\nlong,gpu,10\n"
    >>> characters = Path("rewards.csv").write_text(rows)
    >>> table = reward_table("rewards.csv", servers=2, arrival_rate=0.5)
    >>> table.problem.mean_reward, table.scale
    (array([[0.6, 1. ],
           [0. , 0.8]]), Scale(low=2.0, high=12.0))
    """
    from bilinq.traces.reward_rows import Side, Tally, chunks

    _check_clock(arrival_rate, time, slot)
    one_of("unseen", unseen, ("error", "predicted"))
    jobs = Side(job, _columns("job_features", job_features), _named(arrival_rate))
    others = Side(server, _columns("server_features", server_features), _named(servers))
    tally = Tally(jobs, others, reward, time, _bounds(reward_range))
    file = Path(path)
    numbers = [reward, *jobs.features, *others.features, *(() if time is None else (time,))]
    for chunk in chunks(file, (job, server), numbers):
        tally.take(chunk)
    tally.check_seen(file)
    return build(tally, file, Terms(servers, arrival_rate, slot, service_rate, holding_cost, noise, unseen))


def _check_clock(arrival_rate: PerClass | None, time: str | None, slot: float | None) -> None:
    """Raise unless either the rate is given or both the column of times and the length of a slot."""
    if (arrival_rate is None) == (time is None) or (time is None) != (slot is None):
        given = f"arrival_rate = {short(arrival_rate)}, time = {time!r}, slot = {slot!r}"
        raise BadInput(f"either arrival_rate or time and slot must be given; got {given}")
    if slot is not None:
        scalar("slot", slot, positive)


def _columns(name: str, value: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of feature columns."""
    if value is None:
        return ()
    if isinstance(value, str) or not value or not all(isinstance(column, str) for column in value):
        raise BadInput(f"{name} must be a list of column names; got {short(value)}")
    return tuple(value)


def _named(value: object) -> list[str] | None:
    """Return the classes that a mapping names, or None for all."""
    return [str(name) for name in value] if isinstance(value, Mapping) else None


def _bounds(reward_range: tuple[float, float] | None) -> tuple[float, float] | None:
    if reward_range is None:
        return None
    bounds = finite("reward_range", reward_range)
    if bounds.shape != (2,) or not bounds[0] < bounds[1]:
        raise BadInput(f"reward_range must be (low, high) with low below high; got {short(reward_range)}")
    return float(bounds[0]), float(bounds[1])
