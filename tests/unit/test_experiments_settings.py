"""Settings: the trace, sized jobs, no features, a given problem, and seeds of drawn problems."""

from pathlib import Path

import pytest

from bilinq import FirstCome, KnownRewards, Problem, simulate
from bilinq.errors import BadInput
from bilinq.experiments import Fixed, PlannedRun, SizedJobs, Synthetic, Unstructured, sweep
from bilinq.experiments.run import canonical
from bilinq.experiments.settings import SEED_STEP, make_setting
from bilinq.lab.trace import Trace
from bilinq.simulation import Breakdowns, Recorded


def test_trace_has_the_V_of_the_public_code() -> None:
    """107.5 and 71.1 are the public code's on this trace: docs/maths.md at Eq. (25)."""
    trace = Trace()
    assert trace.V() == pytest.approx(107.5, abs=0.05)
    assert trace.V((1.75, 1.75, 0.25, 0.25, 1.0)) == pytest.approx(71.1, abs=0.05)
    assert trace.slots == 1100


def test_trace_replications_share_problem_and_arrivals() -> None:
    trace = Trace()
    problems = trace.problems(1, range(3))
    assert all(problem is problems[0] for problem in problems)
    found = simulate(problems, KnownRewards(V=trace.V()), slots=300, arrivals=trace.arrivals(), service=trace.service)
    assert (found.queue[:, :141] == found.queue[:1, :141]).all()  # up to the first service nothing is random
    assert (found.queue[:, :139] == 0).all()  # the first collection comes after 700 s
    assert (found.queue[:, 140] > 0).any()


def test_key_of_a_run_depends_on_the_data() -> None:
    problem = Problem.synthetic(seed=1)
    other = problem.replace(noise=0.2)
    synthetic = (Fixed(problem), Fixed(other), SizedJobs(Fixed(problem)), Unstructured(Fixed(problem)))
    keys = {
        PlannedRun(setting, KnownRewards(V=1.0), slots=10, replications=1, seed=0).key
        for setting in (*synthetic, Trace(), Trace(unseen="predicted"))
    }
    assert len(keys) == 6
    assert canonical(Trace()) == canonical(Trace())


def test_features_are_removed_and_rewards_stay() -> None:
    inner = Synthetic()
    (plain,), (problem,) = (setting.problems(1, range(3, 4)) for setting in (Unstructured(inner), inner))
    assert plain.job_features.shape == (10, 10)
    assert (plain.mean_reward == problem.mean_reward).all()
    assert (plain.arrival_rate == problem.arrival_rate).all()
    assert (plain.noise == problem.noise).all()
    assert Unstructured(SizedJobs(inner)).service == "units"


def test_sized_jobs_are_the_same_for_two_policies() -> None:
    setting = SizedJobs(Fixed(Problem.synthetic(service_rate=0.2, seed=1)))
    problems = setting.problems(1, range(2))
    found = [simulate(problems, policy, slots=400, arrivals=setting.arrivals(), service=setting.service, seed=3)
             for policy in (FirstCome(), FirstCome(newest=True))]  # fmt: skip
    assert (found[0].queue.sum(axis=2) == found[1].queue.sum(axis=2)).all()  # neither idles, and lengths are given


def test_problems_follow_the_seed_of_the_run_or_their_own() -> None:
    replications = range(4, 6)
    assert Synthetic().problems(3, replications) == [Problem.synthetic(seed=3 * SEED_STEP + k) for k in (4, 5)]
    for seed in (3, 9):
        assert Synthetic(seed=7).problems(seed, replications) == [Problem.synthetic(seed=7 + k) for k in (4, 5)]
    fixed = make_setting({"seed": 7, "instances": "fixed"})
    assert fixed.problems(3, replications) == [Problem.synthetic(seed=7)] * 2


def test_sweeps_take_units_breakdowns_and_recorded_arrivals(tmp_path: Path) -> None:
    """Relative to the sweep file, as problem files are; the same settings in Python give the same numbers."""
    (tmp_path / "arrivals.csv").write_text("slot,job_class,units\n0,0,3\n5,1,2\n")
    (tmp_path / "sweep.toml").write_text(
        'slots = 20\nreplications = 2\n[problem]\nrecorded = "arrivals.csv"\nservice = "units"\nbreakdowns = [0.1, 0.5]\n'
        'seed = 3\n[[policy]]\nkind = "first-come"\n'
    )
    (cell,) = sweep.load(tmp_path / "sweep.toml").cells()
    setting = cell.run.setting
    assert setting.service == "units" and setting.capacity() == Breakdowns(0.1, 0.5)
    recorded = setting.arrivals()
    assert isinstance(recorded, Recorded) and recorded.jobs.tolist() == [[0, 0, 3], [5, 1, 2]]
    (result,) = sweep.run(sweep.load(tmp_path / "sweep.toml"), tmp_path / "out", workers=1)
    assert result.samples["queue"].mean() == pytest.approx(5 / 20, rel=0.5)
    with pytest.raises(BadInput, match="breakdowns must be two chances"):
        make_setting({"breakdowns": 0.1})
