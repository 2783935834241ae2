"""Runs: what they keep, that a replication depends only on its number, and continuing after Ctrl-C."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bilinq import Greedy, KnownRewards, Problem, Random, Sabr, simulate
from bilinq.experiments import PlannedRun, Record, Synthetic, execute, load_run, start_workers
from bilinq.experiments import run as run_module
from bilinq.experiments.record import exists, measure
from bilinq.experiments.run import run_chunk
from bilinq.experiments.settings import SEED_STEP

SETTING = Synthetic(job_classes=3, holding_cost=(2.0, 1.0, 0.5))

RUN = PlannedRun(SETTING, Random(), slots=40, replications=3, seed=5)


def made(run: PlannedRun, folder: Path) -> Record:
    """Return the record of a run, made in `folder` unless it is there."""
    execute([run], folder)
    return load_run(run, folder)


def test_record_keeps_what_simulate_returns(tmp_path: Path) -> None:
    run = replace(RUN, slots=600, keep="class paths")
    record = made(run, tmp_path)
    problems = [
        Problem.synthetic(job_classes=3, holding_cost=(2.0, 1.0, 0.5), seed=5 * SEED_STEP + k) for k in range(3)
    ]
    runs = simulate(problems, Random(), slots=600, seed=5 * SEED_STEP)
    summary = runs.summary()
    for name in ("regret", "queue", "holding_cost", "wait"):
        assert record.samples[name].mean() == pytest.approx(summary[name].mean)
    np.testing.assert_array_equal(record.samples["reward"], runs.reward.sum(axis=1))
    assert record.slot[0] == 1
    assert record.slot[-1] == 600
    assert record.slot.size == 250
    np.testing.assert_allclose(record.paths["regret"], runs.regret[:, record.slot - 1], rtol=1e-6)
    np.testing.assert_array_equal(record.paths["queue_of_class"], runs.queue[:, record.slot - 1])


def test_record_of_samples_has_no_paths(tmp_path: Path) -> None:
    full, small = made(RUN, tmp_path), made(replace(RUN, keep="samples"), tmp_path)
    assert not small.paths and full.paths
    for name, values in full.samples.items():
        np.testing.assert_array_equal(values, small.samples[name])


def test_band_is_the_interval_of_each_slot(tmp_path: Path) -> None:
    runs = simulate(SETTING.problems(1, range(4)), Greedy(), slots=30, seed=1)
    band = measure(runs, "paths", 0.0).band("regret")
    summary = runs.summary()["regret"]
    assert (band.mean[-1], band.low[-1], band.high[-1]) == pytest.approx((summary.mean, summary.low, summary.high))


def test_replication_depends_only_on_its_number(tmp_path: Path) -> None:
    """55 replications are two chunks; the first 52 of them are those of a run of 52."""
    long, short = replace(RUN, replications=55, slots=5), replace(RUN, replications=52, slots=5)
    more = made(long, tmp_path)
    for name, values in made(short, tmp_path).samples.items():
        np.testing.assert_array_equal(values, more.samples[name][:52])


def test_policies_meet_the_same_problems_and_arrivals() -> None:
    """Rewards known or not, the first slot's queue is the arrival alone."""
    one, other = (
        run_chunk(replace(RUN, policy=policy, keep="class paths"), 0) for policy in (Sabr(V=9.0), KnownRewards(V=9.0))
    )
    np.testing.assert_array_equal(one.paths["queue_of_class"][:, 0], other.paths["queue_of_class"][:, 0])


def test_processes_change_nothing(tmp_path: Path) -> None:
    runs = [replace(RUN, seed=seed, slots=5) for seed in (1, 2)]
    with start_workers(workers=2) as team:
        execute(runs, tmp_path / "two", team)
    for run in runs:
        alone, parallel = made(run, tmp_path / "one"), load_run(run, tmp_path / "two")
        np.testing.assert_array_equal(alone.paths["regret"], parallel.paths["regret"])


def test_key_depends_on_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[dict[str, Any]] = [
        {}, {"slots": 41}, {"replications": 4}, {"seed": 6}, {"keep": "class paths"}, {"keep": "samples"},
        {"policy": Greedy()}, {"policy": Sabr(V=3.0)}, {"policy": Sabr(V=4.0)}, {"policy": KnownRewards(V=3.0)},
        {"policy": Sabr(V=3.0, weight=(1.0, 2.0, 3.0))}, {"policy": Sabr(V=3.0, weight=np.array([1.0, 2.0, 4.0]))},
        {"setting": Synthetic(job_classes=4)}, {"setting": Synthetic(job_classes=3, law="poisson")},
    ]  # fmt: skip
    keys = [replace(RUN, **change).key for change in changes]
    assert len(set(keys)) == len(keys)
    assert replace(RUN, label="a name for people").key == RUN.key
    monkeypatch.setattr(run_module, "code_digest", lambda: "other code")
    assert replace(RUN).key not in keys


def test_key_refuses_values_it_cannot_write() -> None:
    @dataclass(frozen=True)
    class Odd(Random):
        thing: object = object()

    with pytest.raises(TypeError, match="plain values; got object"):
        _ = replace(RUN, policy=Odd()).key


def test_interruption_keeps_finished_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [replace(RUN, seed=seed) for seed in range(4)]
    called: list[int] = []

    def stop_in_third(run: PlannedRun, number: int) -> Any:
        called.append(run.seed)
        if len(called) == 3:
            raise KeyboardInterrupt
        return run_chunk(run, number)

    monkeypatch.setattr("bilinq.experiments.run.run_chunk", stop_in_third)
    with pytest.raises(KeyboardInterrupt):
        execute(runs, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert execute(runs, tmp_path) == {runs[2].key, runs[3].key}
    assert len(list(tmp_path.iterdir())) == 4
    assert called == [0, 1, 2, 2, 3]


def test_damaged_files_are_run_again(tmp_path: Path) -> None:
    first = made(RUN, tmp_path)
    path = tmp_path / f"{RUN.key}.npz"
    for content in (b"", b"not a zip", path.read_bytes()[:500]):
        path.write_bytes(content)
        assert not exists(path)
        np.testing.assert_array_equal(made(RUN, tmp_path).samples["regret"], first.samples["regret"])
    assert exists(path)


def test_equal_runs_are_run_once_and_progress_is_reported(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    runs = [replace(RUN, slots=2000), replace(RUN, slots=2000), replace(RUN, slots=1000)]
    execute(runs, tmp_path, progress=lambda *numbers: reported.append(numbers))
    assert reported == [(6000, 9000), (9000, 9000)]
    execute(runs, tmp_path, progress=lambda *numbers: reported.append(numbers))
    assert len(reported) == 2
