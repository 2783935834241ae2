"""What a notebook shows: short texts, HTML, DataFrames, plots, progress; and rewards in the units of a table."""

import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot

import bilinq
from bilinq import BadInput, BilinqError, FirstCome, KnownRewards, Problem, Runs, Workload, allocate, replay, simulate
from bilinq.display import NotebookBar, html_table, in_notebook, short_list
from bilinq.experiments import sweep
from bilinq.routing.routers import LeastBusy
from bilinq.simulation.records import Interval, interval
from bilinq.traces import RewardTable, reward_table
from workloads import random_fleet

ROWS: dict[str, list[Any]] = {
    "job": ["a", "a", "b", "b", "b"],
    "server": ["x", "y", "x", "y", "y"],
    "reward": [70, 80, 30, 95, 97],
}


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def runs() -> Runs:
    return simulate(Problem.synthetic(seed=7), KnownRewards(V=20.0), slots=60, replications=3, seed=1)


@pytest.fixture(scope="module")
def problem() -> Problem:
    allowed = [[True, True], [False, True]]
    names: dict[str, Any] = {"job_names": ["chat", "code"], "server_names": ["big", "small"]}
    return Problem(
        arrival_rate=[0.2, 0.3], servers=[1, 2], mean_reward=[[0.1, 0.2], [0.3, 0.4]], eligible=allowed, **names
    )


def everything(runs: Runs, problem: Problem) -> list[Any]:
    work = random_fleet(40)
    answer = allocate([3, 1], [[0.2, 0.9], [0.5, 0.4]], [1, 1], 10.0)
    table = reward_table(ROWS, servers=1, arrival_rate=0.5)
    earned = table.earned(simulate(table.problem, FirstCome(), slots=20, arrivals=table.arrivals))
    return [runs, replay(work, LeastBusy()), problem, work, answer, runs.summary()["reward"], earned]


def test_texts_are_short_and_html_is_closed(runs: Runs, problem: Problem) -> None:
    for one in everything(runs, problem):
        text, html = repr(one), one._repr_html_()
        assert len(text) < 400 and "\n" not in text and "np." not in text and "array" not in text
        assert html.count("<table>") == html.count("</table>") and "np." not in html


def test_texts_say_the_main_numbers(runs: Runs, problem: Problem) -> None:
    found = runs.summary()
    assert repr(runs).endswith(f"replications=3, slots=60, reward={found['reward']}, queue={found['queue']})")
    assert repr(interval(np.array([1.0, 2.0, 3.0]))) == "Interval(mean=2, low=-0.484138, high=4.48414)"
    assert Interval(2.0, 1.5, 2.5)._repr_html_() == "2 ± 0.5"
    answer = allocate([3, 1], [[0.2, 0.9], [0.5, 0.4]], [1, 1], 10.0)
    start = "Allocation(shape=2 x 2, services=1.143, price=[0, 0], residual="
    assert repr(answer).startswith(start) and repr(answer).endswith(", status=certified)")
    assert "<td>chat, code</td>" in problem._repr_html_() and repr(runs.jobs).startswith("Jobs(")
    assert html_table("<a>", {"<b>": "<c>"}).count("&lt;") == 3
    assert short_list("abcdefgh") == "a, b, c, d, e, f and 2 more" and short_list(["a"]) == "a"


def test_a_batch_of_allocations_has_a_short_text() -> None:
    batch = allocate(np.ones((50, 3)), np.full((3, 9), 0.5), np.ones(9), 10.0)
    assert repr(batch).startswith("Allocation(shape=50 x 3 x 9,") and len(repr(batch)) < 150
    with pytest.raises(BadInput, match=r"to_pandas is for one allocation; got a batch of shape \(50,\)"):
        batch.to_pandas()


def test_data_frames_have_the_numbers(runs: Runs, problem: Problem) -> None:
    frame = runs.to_pandas()
    assert len(frame) == 180 and frame["services"].sum() == runs.services.sum()
    assert frame[(frame["replication"] == 1) & (frame["slot"] == 60)]["regret"].item() == runs.regret[1, -1]
    assert runs.jobs is not None and runs.jobs.to_pandas()["wait"].mean() == pytest.approx(runs.jobs.wait.mean())
    rewards = problem.to_pandas()
    assert rewards.loc["code", "small"] == 0.4 and np.isnan(rewards.loc["code", "big"])
    answer = allocate([3, 1], [[0.2, 0.9], [0.5, 0.4]], [1, 1], 10.0)
    np.testing.assert_array_equal(answer.to_pandas().to_numpy(), answer.expected)
    assert replay(random_fleet(40), LeastBusy()).to_pandas().shape == (40, 10)


def test_sparse_allocations_have_a_row_for_each_used_pair() -> None:
    u, v, theta = np.eye(2), np.eye(2), np.array([[0.9, 0.1], [0.2, 0.8]])
    answer = allocate([3, 2], None, [1, 1], 10.0, job_features=u, server_features=v, theta=theta)
    frame = answer.to_pandas()
    assert list(frame.columns) == ["job class", "server class", "expected"]
    assert frame["expected"].sum() == pytest.approx(answer.expected.sum()) and "np." not in repr(answer)


def test_a_workload_comes_back_from_its_data_frame() -> None:
    work = random_fleet(30)
    names: dict[str, Any] = {"servers": work.servers, "arrival": "arrival", "features": ["feature 0", "feature 1"]}
    again = Workload.from_table(work.to_pandas(), duration=work.duration, **names)
    for name in ("arrival", "reward", "job_class", "duration", "features"):
        np.testing.assert_array_equal(getattr(again, name), getattr(work, name))


def test_missing_pandas_and_matplotlib_say_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, runs: Runs, problem: Problem
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for one in (runs, problem, random_fleet(5)):
        with pytest.raises(BilinqError, match=r"^pandas is not installed; run: pip install pandas$"):
            one.to_pandas()
        with pytest.raises(BilinqError, match=r"^bilinq\[lab\] is not installed; run: pip install 'bilinq\[lab\]'$"):
            one.plot()


def test_plots_draw(runs: Runs, problem: Problem) -> None:
    top, bottom = runs.plot()
    assert top.get_ylabel() == "jobs in the system" and bottom.get_ylabel() == "mean reward per slot"
    np.testing.assert_allclose(bottom.get_lines()[0].get_ydata()[-1], runs.reward.mean())
    ax = problem.plot()
    assert [text.get_text() for text in ax.texts] == ["0.10", "0.20", "0.40"]  # a pair that is not eligible has none
    assert [label.get_text() for label in ax.get_yticklabels()] == ["chat", "code"]
    work = random_fleet(200)
    means = [[work.reward[work.job_class == i, j].mean() for j in range(3)] for i in range(3)]
    np.testing.assert_allclose(work.plot().images[0].get_array(), means)
    for number in pyplot.get_fignums():
        pyplot.figure(number).canvas.draw()
    own = pyplot.figure().subplots()
    assert problem.plot(own) is own


def test_runs_come_back_from_a_file(tmp_path: Path, runs: Runs) -> None:
    runs.save(tmp_path / "runs.npz")
    again = Runs.load(tmp_path / "runs.npz")
    assert again.summary() == runs.summary() and again.settings == runs.settings and again.complete
    assert again.queue.dtype == runs.queue.dtype and again.allocation is None
    bare = simulate(Problem.synthetic(seed=7), FirstCome(), slots=5, record_jobs=False, record_allocation=True)
    bare.save(tmp_path / "bare.npz")
    back = Runs.load(tmp_path / "bare.npz")
    assert back.jobs is None and back.allocation is not None
    with pytest.raises(BadInput, match="must contain a workload, version 1; got 'runs 1'"):
        Workload.load(tmp_path / "runs.npz")


def test_version() -> None:
    assert bilinq.__version__ == version("bilinq")


def frame_of(rows: dict[str, list[Any]]) -> Any:
    return import_module("pandas").DataFrame(rows)


def arrow_of(rows: dict[str, list[Any]]) -> Any:
    import pyarrow

    return pyarrow.table(rows)


@pytest.mark.parametrize("make", [dict, frame_of, arrow_of])
def test_reward_tables_come_from_memory_as_from_a_file(make: Callable[[Any], Any], tmp_path: Path) -> None:
    lines = ["job,server,reward", *(",".join(map(str, row)) for row in zip(*ROWS.values(), strict=True))]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    options: dict[str, Any] = {"servers": {"x": 2, "y": 1}, "arrival_rate": 0.5}
    known, found = reward_table(tmp_path / "rows.csv", **options), reward_table(make(ROWS), **options)
    assert found.problem == known.problem and found.scale == known.scale
    np.testing.assert_array_equal(found.counts, known.counts)


def test_faults_of_a_table_in_memory_name_the_row() -> None:
    def read(rows: Any) -> RewardTable:
        return reward_table(rows, servers=1, arrival_rate=0.5)

    with pytest.raises(BadInput, match=r"^table: row 2: reward must be a finite number; got"):
        read(frame_of(ROWS | {"reward": [1.0, np.nan, 2.0, 3.0, 4.0]}))
    with pytest.raises(BadInput, match=r"^table: row 5: job must be a name; got nothing"):
        read(frame_of(ROWS | {"job": ["a", "a", "b", "b", None]}))
    with pytest.raises(BadInput, match=r"^table: must have one column 'reward'; got only"):
        read(frame_of({"job": ["a"], "server": ["x"]}))
    with pytest.raises(BadInput, match=r"^path must be a file, a DataFrame, a PyArrow table or a mapping"):
        read(3)


def test_categories_and_other_columns_are_accepted() -> None:
    frame = frame_of(ROWS | {"note": [object()] * 5})
    frame["job"] = frame["job"].astype("category")
    assert reward_table(frame, servers=1, arrival_rate=0.5).problem.job_names == ("a", "b")


def test_earnings_are_in_the_units_of_the_table() -> None:
    """One pair that always pays 70: a service earns 70 and a job as much for each of its services, by hand.

    The map of single rewards, applied to the mean reward of a slot, gives another number, which this test rejects.
    """
    rows = {"job": ["a"], "server": ["x"], "reward": [70.0]}
    table = reward_table(rows, servers=1, arrival_rate=0.3, service_rate=0.5, noise=0.0, reward_range=(20.0, 120.0))
    runs = simulate(table.problem, FirstCome(), slots=4000, replications=3, arrivals=table.arrivals, seed=2)
    earned = table.earned(runs)
    assert earned.per_service.mean == pytest.approx(70.0)
    assert earned.total.mean == pytest.approx(70.0 * runs.services.sum(axis=1).mean())
    assert earned.per_slot.mean == pytest.approx(70.0 * 0.6, rel=0.05)  # 0.3 jobs a slot with 2 services each
    assert earned.per_job is not None and earned.per_job.mean == pytest.approx(140.0, rel=0.05)
    assert abs(float(table.scale.to_file(runs.observed.mean())) - earned.per_slot.mean) > 5.0
    bare = simulate(table.problem, FirstCome(), slots=10, record_jobs=False, arrivals=table.arrivals)
    assert table.earned(bare).per_job is None


def test_services_are_those_that_were_observed() -> None:
    """Without noise and with one reward of 0.5 for all pairs, observed rewards are half the number of services."""
    same = Problem.synthetic(seed=7).replace(mean_reward=np.full((10, 2), 0.5), noise=0.0)
    runs = simulate(same, bilinq.Sabr(V=20.0), slots=40, replications=2, seed=1)
    np.testing.assert_allclose(runs.observed, 0.5 * runs.services)


class Cell:
    """What a notebook shows below a cell."""

    def __init__(self) -> None:
        self.html: list[str] = []

    def HTML(self, html: str) -> str:
        return html

    def display(self, html: str, display_id: bool) -> "Cell":
        assert display_id
        self.html.append(html)
        return self

    def update(self, html: str) -> None:
        self.html.append(html)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    shown = Cell()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=shown))
    monkeypatch.setattr("bilinq.display.PATIENCE", 0.0)
    return shown


def test_a_bar_appears_after_two_seconds_and_goes(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    bar = NotebookBar("jobs", patience=2.0)
    bar(10, 40)
    assert not cell.html
    now[0] += 3.0
    bar(30, 40)
    bar.close()
    assert cell.html == ['<progress value="30" max="40"></progress> 30 of 40 jobs, about 1 s left', ""]


def test_simulate_replay_and_sweep_show_progress_in_notebooks(cell: Cell, tmp_path: Path) -> None:
    simulate(Problem.synthetic(seed=7), FirstCome(), slots=300)
    assert cell.html[-2].startswith('<progress value="300" max="300">') and cell.html[-1] == ""
    replay(random_fleet(50), LeastBusy())
    assert "50 of 50 jobs" in cell.html[-2]
    (tmp_path / "s.toml").write_text('slots = 20\nreplications = 2\n[problem]\n[[policy]]\nkind = "first-come"\n')
    sweep.run(sweep.load(tmp_path / "s.toml"), tmp_path / "out", workers=1)
    assert "slots" in cell.html[-2]


def test_a_callable_of_ones_own_is_used_instead_and_terminals_show_nothing(cell: Cell) -> None:
    calls: list[tuple[int, int]] = []
    replay(random_fleet(50), LeastBusy(), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(50, 50)] and not cell.html
    sys.modules["IPython"].get_ipython = lambda: None  # type: ignore[attr-defined]
    with in_notebook(None, "jobs") as report:
        assert report is None
