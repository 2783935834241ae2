"""Training speeds of 26 kinds of jobs on three kinds of GPU, shipped with the package: `gpu_table`."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import non_negative, one_of, positive, scalar
from bilinq.problem import Problem
from bilinq.traces.reward_model import scaled_features


def gpu_table(
    *,
    servers: ArrayLike = (4, 4, 4),
    load: float = 0.7,
    service_rate: float = 0.05,
    noise: float = 0.1,
    features: Literal["known", "one-hot"] = "known",
) -> Problem:
    """Return a cluster of K80, P100 and V100 GPUs that trains 26 kinds of jobs, each as often as the others.

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
        Standard deviation of the relative speed seen in a slot.
    features : "known" or "one-hot"
        What is known of a job before it ever ran (model family, and doublings of the batch size within the family), or
        nothing. GPUs are one-hot: with three of them any features are as good.

    Examples
    --------
    >>> problem = gpu_table(load=0.5)
    >>> problem.job_names[20], problem.mean_reward[20].round(2)
    ('Recommendation (512)', array([0.67, 1.  , 0.48]))
    """
    one_of("features", features, ("known", "one-hot"))
    data, number, rate = _read(), non_negative("servers", servers), scalar("service_rate", service_rate, positive)
    jobs, total = data["jobs"], scalar("load", load, positive) * number.sum() * rate
    return Problem(
        arrival_rate=np.full(len(jobs), total / len(jobs)),
        servers=number,
        mean_reward=[job["relative"] for job in jobs],
        job_features=scaled_features([job["features"] for job in jobs]) if features == "known" else None,
        service_rate=rate,
        noise=noise,
        job_names=[job["name"] for job in jobs],
        server_names=data["gpus"],
    )


def _read() -> Any:
    return json.loads((files("bilinq.traces") / "data" / "gavel.json").read_text(encoding="utf-8"))
