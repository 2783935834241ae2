"""From a table of observations to a problem: means, noise, features, pairs never seen, arrivals, units."""

import doctest
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bilinq import BadInput, Random, simulate
from bilinq.simulation import Poisson, Recorded
from bilinq.traces import RewardTable, Scale, reward_model, reward_rows, reward_table, rewards

ROWS = """job,server,reward
short,cpu,7
short,gpu,12
short,cpu,9
long,gpu,10
long,cpu,2
long,gpu,11
long,gpu,12
"""


def table(folder: Path, text: str = ROWS, **options: Any) -> RewardTable:
    file = folder / "rewards.csv"
    file.write_text(text, encoding="utf-8")
    return reward_table(file, **({"servers": 2, "arrival_rate": 0.5} | options))


def bilinear_rows(rng: np.random.Generator, rows: int) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Return observations of 6 x 4 classes whose means are exactly bilinear in the features, and the means."""
    u, v = np.c_[np.ones(6), np.arange(6.0) * 100], np.c_[np.ones(4), [0.0, 3.0, 1.0, 2.0]]
    mean = u @ np.array([[40.0, 5.0], [0.1, -0.02]]) @ v.T
    i, j = rng.integers(6, size=rows), rng.integers(4, size=rows)
    columns = {
        "kind": [f"0{k}" for k in i],
        "machine": j + 10**17,
        "gain": mean[i, j] + rng.normal(0.0, 2.0, rows),
        "one": np.ones(rows),
        "size": u[i, 1],
        "cores": v[j, 1],
    }
    return columns, mean


NAMED: dict[str, Any] = {"job": "kind", "server": "machine", "reward": "gain", "servers": 3, "arrival_rate": 1.2}


def test_means_noise_and_scale_by_hand(tmp_path: Path) -> None:
    """Means 8, 12, 2, 11 on 2 to 12. Deviations: sqrt(2) of (7, 9), 1 of (10, 11, 12); pooled sqrt((2 + 2) / 3)."""
    found = table(tmp_path)
    problem = found.problem
    assert problem.job_names == ("short", "long") and problem.server_names == ("cpu", "gpu")
    assert found.scale == Scale(2.0, 12.0)
    np.testing.assert_allclose(problem.mean_reward, [[0.6, 1.0], [0.0, 0.9]])
    pooled = np.sqrt(4 / 3)
    np.testing.assert_allclose(problem.noise, [[np.sqrt(2.0) / 10, pooled / 10], [pooled / 10, 0.1]])
    assert found.counts.tolist() == [[2, 1], [1, 3]]
    assert found.arrivals == Poisson() and problem.arrival_rate.tolist() == [0.25, 0.25]
    assert problem.servers.tolist() == [2, 2] and not found.left_out
    np.testing.assert_array_equal(problem.job_features, np.eye(2))


def test_rewards_within_one_stay_as_they_are(tmp_path: Path) -> None:
    text = "job,server,reward\na,x,-0.5\na,x,0.25\n"
    found = table(tmp_path, text)
    assert found.scale == Scale() and found.problem.mean_reward.tolist() == [[-0.125]]


def test_a_given_range_is_used_and_can_be_inverted(tmp_path: Path) -> None:
    found = table(tmp_path, reward_range=(0.0, 20.0))
    np.testing.assert_allclose(found.problem.mean_reward, [[0.4, 0.6], [0.1, 0.55]])
    np.testing.assert_allclose(found.scale.to_file(found.problem.mean_reward), [[8, 12], [2, 11]])
    values = np.linspace(-3.0, 30.0, 7)
    np.testing.assert_allclose(found.scale.to_file(found.scale.to_problem(values)), values)


def test_equal_rewards_have_a_scale(tmp_path: Path) -> None:
    found = table(tmp_path, "job,server,reward\na,x,5\na,x,5\n")
    assert found.problem.mean_reward.tolist() == [[0.0]] and found.scale.to_file([0.0]).tolist() == [5.0]


def test_given_noise_is_in_the_units_of_the_file(tmp_path: Path) -> None:
    np.testing.assert_allclose(table(tmp_path, noise=3.0).problem.noise, 0.3)


def test_three_lines_run(tmp_path: Path) -> None:
    found = table(tmp_path)
    runs = simulate(found.problem, Random(), slots=50, arrivals=found.arrivals)
    assert runs.queue.shape == (1, 50, 2)


def test_mappings_name_classes_and_leave_others_out(tmp_path: Path) -> None:
    """Both orders are the mapping's. Rows of "huge" go by their job, that of "short" on "tpu" by its server."""
    text = ROWS + "huge,cpu,1\nhuge,tpu,1\nshort,tpu,1\n"
    found = table(tmp_path, text, servers={"gpu": 1, "cpu": 4}, arrival_rate={"long": 0.1, "short": 0.3},
                  service_rate={"short": 0.5, "long": 0.2}, holding_cost={"short": 1.0, "long": 7.0})  # fmt: skip
    problem = found.problem
    assert problem.job_names == ("long", "short") and problem.server_names == ("gpu", "cpu")
    assert found.counts.tolist() == [[3, 1], [1, 2]]
    assert problem.arrival_rate.tolist() == [0.1, 0.3] and problem.servers.tolist() == [1, 4]
    assert problem.service_rate.tolist() == [0.2, 0.5] and problem.holding_cost.tolist() == [7.0, 1.0]
    assert found.left_out == {"job 'huge'": 2, "server 'tpu'": 1}


def test_classes_seen_only_in_rows_left_out_are_left_out(tmp_path: Path) -> None:
    found = table(tmp_path, ROWS + "huge,tpu,1\n", servers={"gpu": 1, "cpu": 4})
    assert found.problem.job_names == ("short", "long") and found.left_out == {"server 'tpu'": 1}


@pytest.mark.parametrize("block", [300, 2**20])
@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_formats_and_block_sizes_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, block: int) -> None:
    """Means and deviations against NumPy's, with names that a number would not survive."""
    monkeypatch.setattr(reward_rows, "BLOCK", block)
    columns, _ = bilinear_rows(np.random.default_rng(3), 500)
    file = tmp_path / f"rewards.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table(columns), file)
    else:
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        packed = gzip.compress("\n".join(lines).encode())
        file.write_bytes(packed if kind == "csv.gz" else gzip.decompress(packed))
    found = reward_table(file, **NAMED, job_features=["one", "size"])
    for i, kind_name in enumerate(found.problem.job_names):
        for j, machine in enumerate(found.problem.server_names):
            name, number = np.array(columns["kind"]), columns["machine"].astype(str)
            mine = columns["gain"][(name == kind_name) & (number == machine)]
            assert found.counts[i, j] == mine.size > 2
            assert found.scale.to_file(found.problem.mean_reward)[i, j] == pytest.approx(mine.mean())
            spread = found.problem.noise[i, j] * (found.scale.high - found.scale.low)
            assert spread == pytest.approx(mine.std(ddof=1))
    assert set(found.problem.job_names) == {f"0{k}" for k in range(6)}
    assert set(found.problem.server_names) == {str(10**17 + k) for k in range(4)}


def test_features_are_scaled_and_keep_their_span(tmp_path: Path) -> None:
    """Columns by their largest entries 1 and 500, then all by sqrt(2), the length of (1, 1)."""
    columns, _ = bilinear_rows(np.random.default_rng(3), 500)
    pq.write_table(pa.table(columns), tmp_path / "rewards.parquet")
    found = reward_table(tmp_path / "rewards.parquet", **NAMED, job_features=["one", "size"])
    size = np.array([float(name) for name in found.problem.job_names])
    np.testing.assert_allclose(found.problem.job_features, np.c_[np.ones(6), size / 5] / np.sqrt(2))
    np.testing.assert_array_equal(found.problem.server_features, np.eye(4))


def test_unseen_pairs_are_named_or_predicted(tmp_path: Path) -> None:
    """Three of 24 pairs never occur; means are bilinear up to noise 2 / sqrt(number of rows): predicted to 0.2.

    Without features nothing can be said about them.
    """
    columns, mean = bilinear_rows(np.random.default_rng(3), 20_000)
    seen = ~np.isin([f"{a} {b}" for a, b in zip(columns["kind"], columns["machine"] - 10**17, strict=True)],
                    ["00 0", "03 2", "05 1"])  # fmt: skip
    file = tmp_path / "rewards.parquet"
    pq.write_table(pa.table(columns).filter(pa.array(seen)), file)
    with pytest.raises(
        BadInput, match=r"rewards.parquet: must contain a row of kind '0\d' on machine '10+\d', or set unseen"
    ):
        reward_table(file, **NAMED)
    with pytest.raises(BadInput, match="unseen = 'predicted' needs job_features or server_features; got neither"):
        reward_table(file, **NAMED, unseen="predicted")
    found = reward_table(file, **NAMED, unseen="predicted", job_features=["one", "size"],
                         server_features=["one", "cores"])  # fmt: skip
    i = [int(name) for name in found.problem.job_names]
    j = [int(name) - 10**17 for name in found.problem.server_names]
    assert (found.counts == 0).sum() == 3
    np.testing.assert_allclose(found.scale.to_file(found.problem.mean_reward), mean[np.ix_(i, j)], atol=0.2)
    known = found.problem.noise[found.counts > 0]
    assert known.min() < found.problem.noise[found.counts == 0].min() < known.max()


def test_predictions_stay_within_the_observed_rewards(tmp_path: Path) -> None:
    """A line through (1, 0.9) and (2, 1.0) on "x" would predict 1.1 at 3."""
    text = "job,server,reward,one,size\na,x,0.9,1,1\nb,x,1,1,2\na,y,0.5,1,1\nb,y,0.5,1,2\nc,y,0.5,1,3\n"
    found = table(tmp_path, text, job_features=["one", "size"], unseen="predicted", noise=0.1)
    assert found.problem.mean_reward.tolist() == [[0.9, 0.5], [1.0, 0.5], [1.0, 0.5]]


def test_a_pair_unlike_all_others_is_not_predicted(tmp_path: Path) -> None:
    text = "job,server,reward,one,size\na,x,0.9,1,0\nb,x,1,1,0\nc,y,0.5,1,3\na,y,0.5,1,0\nb,y,0.5,1,0\n"
    with pytest.raises(BadInput, match="must find job 'c' on server 'x' in the span of observed features"):
        table(tmp_path, text, job_features=["one", "size"], unseen="predicted", noise=0.1)


def test_times_become_recorded_arrivals(tmp_path: Path) -> None:
    """Slots of 10 s from the first row's 100 s: 0, 2, 0 and 3; four slots, so rates are 3 / 4 and 1 / 4."""
    text = "job,server,reward,at\na,x,0.9,109.9\nb,x,0.8,120\na,x,0.7,100\na,x,0.5,139\n"
    found = table(tmp_path, text, arrival_rate=None, time="at", slot=10.0, noise=0.1)
    assert isinstance(found.arrivals, Recorded)
    assert found.arrivals.jobs.tolist() == [[0, 0, 1], [0, 0, 1], [2, 1, 1], [3, 0, 1]]
    assert found.problem.arrival_rate.tolist() == [0.75, 0.25]


def test_memory_grows_with_pairs_not_with_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 3 MB is read with less than 1 MB held at a time in NumPy and Python."""
    import tracemalloc

    monkeypatch.setattr(reward_rows, "BLOCK", 2**14)
    file = tmp_path / "rewards.csv"
    file.write_text("job,server,reward\n" + "a,x,0.123456789012\nb,y,0.5\na,y,0.25\nb,x,0.75\n" * 60_000)
    assert file.stat().st_size > 2.6e6
    reward_table(file, servers=1, arrival_rate=0.1)  # imports
    tracemalloc.start()
    found = reward_table(file, servers=1, arrival_rate=0.1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6
    assert found.counts.sum() == 240_000
    np.testing.assert_allclose(found.problem.noise, 0.0, atol=1e-12)


@pytest.mark.parametrize("module", [rewards, reward_model])
def test_examples_run(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(module)
    assert results.attempted and not results.failed
