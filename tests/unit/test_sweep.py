"""Sweeps: the file format, the grid, resuming, and that chunks and workers change nothing."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bilinq import Greedy, Problem, Rounds, Sabr, simulate
from bilinq.commands import app as cli
from bilinq.errors import BadInput
from bilinq.experiments import PlannedRun, sweep
from bilinq.experiments.run import CHUNK, run_chunk
from bilinq.experiments.settings import SEED_STEP
from bilinq.experiments.sweep import Sweep

TEXT = """
slots = 12
replications = 3
seed = 2

[problem]
job_classes = 3
seed = 40

[[policy]]
name = "first"
kind = "greedy"

[[policy]]
kind = "random"

[grid]
"problem.traffic" = [0.5, 1.0]
"""


def write(folder: Path, text: str = TEXT, name: str = "plan.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def with_replications(plan: Sweep, number: int) -> Sweep:
    return dataclasses.replace(plan, common=plan.common | {"replications": number})


def greedy(plan: Sweep) -> Sweep:
    """Return the sweep with its first cell alone."""
    return dataclasses.replace(plan, policies=plan.policies[:1], grid={})


def test_cells_are_all_combinations(tmp_path: Path) -> None:
    plan = sweep.load(write(tmp_path))
    assert plan.name == "plan"
    found = [(cell.policy, cell.settings["problem"]["traffic"]) for cell in plan.cells()]
    assert found == [("first", 0.5), ("random", 0.5), ("first", 1.0), ("random", 1.0)]
    assert plan.cells()[0].label == "first, problem.traffic = 0.5"
    assert plan.cells()[0].settings["arrivals"] == "bernoulli"


def test_grid_reaches_into_tables(tmp_path: Path) -> None:
    text = 'slots = 5\n[[policy]]\nkind = "sabr"\nallocation = {kind = "rounds", k = 1}\n'
    (tmp_path / "deep.toml").write_text(text + '[grid]\n"policy.allocation.k" = [2, 3]\n')
    plan = sweep.load(tmp_path / "deep.toml")
    assert [cell.run.policy for cell in plan.cells()] == [Sabr(allocation=Rounds(k)) for k in (2, 3)]
    (tmp_path / "flat.toml").write_text(text + '[grid]\n"policy.kind.k" = [2]\n')
    with pytest.raises(BadInput, match=r"grid 'policy.kind.k' must lead into a table; kind is 'sabr'"):
        sweep.load(tmp_path / "flat.toml")


def test_grid_sets_every_policy_and_plain_keys(tmp_path: Path) -> None:
    text = 'slots = 5\n[[policy]]\nkind = "sabr"\nV = 1.0\n[grid]\n"policy.V" = [2.0, 3.0]\nslots = [6, 7]\n'
    cells = sweep.load(write(tmp_path, text)).cells()
    assert [(cell.settings["policy"]["V"], cell.settings["slots"]) for cell in cells] == [
        (2.0, 6), (2.0, 7), (3.0, 6), (3.0, 7),
    ]  # fmt: skip


def test_results_are_those_of_simulate(tmp_path: Path) -> None:
    plan = greedy(sweep.load(write(tmp_path)))
    (result,) = sweep.run(plan, tmp_path / "out", workers=1)
    problems = [Problem.synthetic(job_classes=3, seed=40 + k) for k in range(3)]
    runs = simulate(problems, Greedy(), slots=12, seed=2 * SEED_STEP)
    expected = runs.summary()
    for name, value in result.summary().items():
        assert value.mean == pytest.approx(expected[name].mean, rel=1e-12)
        assert value.high == pytest.approx(expected[name].high, rel=1e-12)


def test_more_replications_extend_fewer(tmp_path: Path) -> None:
    """Replication k is the same in a full chunk, in a part of one, and after the first chunk."""
    plan = greedy(sweep.load(write(tmp_path)))
    few, many = (
        sweep.run(with_replications(plan, number), tmp_path / "out", workers=1)[0]
        for number in (CHUNK + 3, 2 * CHUNK + 1)
    )
    for name, values in few.samples.items():
        assert values.shape == (CHUNK + 3,)
        np.testing.assert_array_equal(values, many.samples[name][: CHUNK + 3])
    second = run_chunk(with_replications(plan, 2 * CHUNK).cells()[0].run, 1)
    np.testing.assert_array_equal(second.samples["reward"][:3] / 12, few.samples["reward"][CHUNK:])
    assert np.unique(many.samples["reward"]).size == 2 * CHUNK + 1


def test_workers_change_nothing(tmp_path: Path) -> None:
    plan = with_replications(greedy(sweep.load(write(tmp_path))), CHUNK + 2)
    (one,), (two,) = (sweep.run(plan, tmp_path / str(workers), workers) for workers in (1, 2))
    for name, values in one.samples.items():
        np.testing.assert_array_equal(values, two.samples[name])


def test_finished_cells_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sweep.load(write(tmp_path))
    first = sweep.run(plan, tmp_path / "out", workers=1)
    assert not any(result.found for result in first)
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()}
    assert len(files) == 4
    monkeypatch.setattr("bilinq.experiments.run.run_chunk", None)
    reported: list[Any] = []
    second = sweep.run(plan, tmp_path / "out", workers=1, progress=lambda *numbers: reported.append(numbers))
    assert all(result.found for result in second)
    assert not reported
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()} == files
    for one, two in zip(first, second, strict=True):
        assert one.summary() == two.summary()


def test_fresh_and_damaged_cells_run_again(tmp_path: Path) -> None:
    plan = greedy(sweep.load(write(tmp_path)))
    sweep.run(plan, tmp_path, workers=1)
    assert not sweep.run(plan, tmp_path, workers=1, fresh=True)[0].found
    (tmp_path / f"{plan.cells()[0].key}.npz").write_text("not a record")
    assert not sweep.run(plan, tmp_path, workers=1)[0].found
    assert sweep.run(plan, tmp_path, workers=1)[0].found


def test_key_depends_on_all_that_decides_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sweep.load(write(tmp_path))
    keys = [cell.key for cell in plan.cells()]
    for changed in (
        ("slots = 12", "slots = 13"),
        ("seed = 40", "seed = 41"),
        ('kind = "greedy"', 'kind = "max-weight"'),
    ):
        other = sweep.load(write(tmp_path, TEXT.replace(*changed), "other.toml"))
        assert other.cells()[0].key not in keys
    renamed = sweep.load(write(tmp_path, TEXT.replace('"first"', '"other"'), "other.toml"))
    assert renamed.cells()[0].key == keys[0]
    monkeypatch.setattr("bilinq.experiments.run.code_digest", lambda: "another version")
    assert plan.cells()[0].key not in keys


def test_interruption_keeps_finished_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sweep.load(write(tmp_path))

    def stop_in_third(run: PlannedRun, number: int) -> Any:
        if run.key == plan.cells()[2].key:
            raise KeyboardInterrupt
        return run_chunk(run, number)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("bilinq.experiments.run.run_chunk", stop_in_third)
        sweep.run(plan, tmp_path / "out", workers=1)
    results = sweep.run(plan, tmp_path / "out", workers=1)
    assert [result.found for result in results] == [True, True, False, False]


@pytest.mark.skipif(os.name != "posix", reason="signals differ elsewhere")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_ends_at_once_and_keeps_finished_cells(tmp_path: Path, workers: str) -> None:
    """A cell of a second, then one of hours: interrupted in the second, it keeps the first."""
    text = TEXT.replace('[grid]\n"problem.traffic" = [0.5, 1.0]', "[grid]\nslots = [3, 100_000_000]")
    text = text.replace('[[policy]]\nkind = "random"\n', "").replace("replications = 3", "replications = 1")
    command = [sys.executable, "-m", "bilinq.commands.app", "sweep", str(write(tmp_path, text)), "--workers", workers]
    out = tmp_path / "out"
    job = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while not list(out.glob("*.npz")) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(job.pid, signal.SIGINT)
        _, printed = job.communicate(timeout=15)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
    assert job.returncode == cli.INTERRUPTED
    assert printed == f"interrupted; finished cells are in {out}, run the same command to continue\n"
    assert len(list(out.iterdir())) == 1


def test_progress_counts_slots_of_all_replications(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    sweep.run(sweep.load(write(tmp_path)), tmp_path, 1, lambda *numbers: reported.append(numbers))
    assert reported == [(36, 144), (72, 144), (108, 144), (144, 144)]


def test_policies_with_equal_settings_share_a_run(tmp_path: Path) -> None:
    text = TEXT.replace('kind = "random"', 'kind = "greedy"\nname = "second"')
    results = sweep.run(sweep.load(write(tmp_path, text)), tmp_path / "out", workers=1)
    assert [result.cell.policy for result in results] == ["first", "second"] * 2
    assert len(list((tmp_path / "out").iterdir())) == 2
    np.testing.assert_array_equal(results[0].samples["regret"], results[1].samples["regret"])


def test_problem_files_are_read_next_to_the_sweep(tmp_path: Path) -> None:
    Problem.synthetic(job_classes=2, seed=1).save(tmp_path / "p.json")
    text = 'slots = 4\nreplications = 2\n[problem]\nfile = "p.json"\n[[policy]]\nkind = "greedy"\n'
    plan = sweep.load(write(tmp_path, text))
    key = plan.cells()[0].key
    (result,) = sweep.run(plan, tmp_path / "out", workers=1)
    runs = simulate(Problem.load(tmp_path / "p.json"), Greedy(), slots=4, replications=2, seed=0)
    np.testing.assert_array_equal(result.samples["regret"], runs.regret[:, -1])
    Problem.synthetic(job_classes=2, seed=2).save(tmp_path / "p.json")
    assert plan.cells()[0].key != key


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("slots = 12", "slots = ", ["is not valid TOML"]),
        ("slots = 12", "", ["missing key 'slots'"]),
        ("slots = 12", "slots = 0", ["first, problem.traffic = 0.5", "slots must be", "got 0"]),
        ("slots = 12", "slot = 12", ["unknown key 'slot'", "known are name, slots"]),
        ("slots = 12", "slots = 12\nname = 3", ["name must be text", "got 3"]),
        ("slots = 12", 'slots = 12\narrivals = "none"', ["arrivals must be one of", "got 'none'"]),
        ("slots = 12", f"slots = {10**10}", ["slots must be at most 1,000,000,000; got 10000000000"]),
        (
            "slots = 12",
            f"slots = {10**9}",
            ["first, problem.traffic = 0.5", "slots * replications * job classes must be"],
        ),
        ("replications = 3", f"replications = {10**7}", ["replications must be at most 1,000,000; got 10000000"]),
        ("job_classes = 3", f"job_classes = {10**9}", ["job_classes must be at most 1,000,000; got 1000000000"]),
        (
            '"problem.traffic" = [0.5, 1.0]',
            f'"seed" = {list(range(1000))}\n"slots" = {list(range(1, 1001))}',
            ["grid and policies must have at most 100,000 cells; got "],
        ),
        ("job_classes = 3", "classes = 3", ["unknown key of the problem: 'classes'", "value 3"]),
        ("job_classes = 3", "job_classes = 0", ["job_classes must be", "got 0"]),
        ("job_classes = 3", 'file = "x.json"', ["file and seed exclude each other"]),
        ('kind = "greedy"', 'kind = "best"', ["policy must be one of", "got 'best'"]),
        ('kind = "greedy"', 'kind = "greedy"\nV = 3', ["unknown option of policy 'greedy': 'V'"]),
        ('kind = "greedy"', "", ["missing key 'kind'"]),
        ('name = "first"', 'name = "random"', ["policy names must be text and differ", "got 'random'"]),
        ('"problem.traffic" = [0.5, 1.0]', '"problem.traffic" = 0.5', ["must be a list of values", "got 0.5"]),
        ('"problem.traffic" = [0.5, 1.0]', '"problem.traffic" = [1.0, 1.0]', ["the same cell twice"]),
        ('"problem.traffic" = [0.5, 1.0]', "problem.traffic = [0.5]", ["grid keys must be one of", "got 'problem'"]),
        ('"problem.traffic" = [0.5, 1.0]', '"policy.name" = ["a"]', ["grid keys must be one of"]),
    ],
)
def test_bad_files_are_explained(tmp_path: Path, old: str, new: str, parts: list[str]) -> None:
    path = write(tmp_path, TEXT.replace(old, new))
    with pytest.raises(BadInput) as caught:
        sweep.load(path)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def test_errors_inside_a_run_name_the_cell(tmp_path: Path) -> None:
    text = 'slots = 4\n[[policy]]\nname = "weighted"\nkind = "sabr"\nweight = [1.0, 2.0]\n'
    with pytest.raises(BadInput, match="weighted: weight must have shape"):
        sweep.run(sweep.load(write(tmp_path, text)), tmp_path, workers=1)


def test_command_prints_json_and_a_table(tmp_path: Path) -> None:
    words = ["sweep", str(write(tmp_path)), "--out", str(tmp_path / "out"), "--workers", "1"]
    printed = json.loads(CliRunner().invoke(cli.app, [*words, "--json"]).stdout)
    assert printed["name"] == "plan"
    assert [cell["found"] for cell in printed["cells"]] == [False] * 4
    assert {"policy", "varied", "settings", "regret", "queue", "holding_cost", "seconds"} <= printed["cells"][0].keys()
    assert printed["cells"][0]["regret"].keys() == {"mean", "low", "high"}
    table = CliRunner().invoke(cli.app, words)
    assert table.exit_code == 0
    assert "holding cost" in table.stdout


def test_command_explains_a_missing_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["sweep", str(tmp_path / "no.toml")])
    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path / 'no.toml'}: cannot be read; No such file or directory\n"


def test_engines_are_named(tmp_path: Path) -> None:
    plan = sweep.load(write(tmp_path))
    with pytest.raises(BadInput, match="engine must be one of 'processes', 'ray'; got 'dask'"):
        sweep.run(plan, tmp_path, engine="dask")
    with pytest.raises(BadInput, match="address is for the engine 'ray'; got '127"):
        sweep.run(plan, tmp_path, address="127.0.0.1:9")
    words = ["sweep", str(tmp_path / "plan.toml"), "--engine", "ray", "--address", "127.0.0.1:9"]
    result = CliRunner().invoke(cli.app, [*words, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2 and result.stderr.startswith("error: address 127.0.0.1:9: nothing answers there")
