"""The command line: what it prints, and one clear line for every error."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from bilinq import FirstCome, Problem, Rounds, Sabr, allocate
from bilinq.commands import app as cli
from bilinq.commands import development, tables
from bilinq.distributed import Power
from bilinq.live.settings import SETTINGS, RewardBounds, ServiceSettings
from bilinq.simulation import Breakdowns, Recorded, Runs, simulate

REQUEST: dict[str, Any] = {
    "queue": [3, 1], "reward": [[0.2, 0.9], [0.5, 0.4]], "capacity": [1, 1], "V": 10.0, "gamma": 1.2,
}  # fmt: skip
SMALL = ["--slots", "20", "--replications", "2"]


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.app, words, input=stdin)


def request_file(folder: Path, **changes: Any) -> Path:
    """Write a request with some keys changed, or left out where the change is `...`."""
    values = {key: value for key, value in (REQUEST | changes).items() if value is not ...}
    path = folder / "slot.json"
    path.write_text(json.dumps(values))
    return path


def fails(result: Result, *parts: str) -> None:
    """Check for exit code 2, nothing on standard output and one line that has all `parts`."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def test_allocate_prints_exactly_the_answer(tmp_path: Path) -> None:
    path = request_file(tmp_path, weight=[1.0, 2.0], limit=[None, 0.1])
    answer = allocate(**REQUEST, weight=[1.0, 2.0], limit=[float("inf"), 0.1])
    for result in (run("allocate", str(path), "--json"), run("allocate", "-", "--json", stdin=path.read_text())):
        assert result.exit_code == 0
        assert json.loads(result.stdout) == {
            "expected": answer.expected.tolist(), "price": answer.price.tolist(), "residual": answer.residual,
        }  # fmt: skip


def test_allocate_shows_a_table(tmp_path: Path) -> None:
    result = run("allocate", str(request_file(tmp_path)))
    assert result.exit_code == 0
    assert "Expected allocation" in result.stdout
    assert "0.143" in result.stdout


def test_allocate_takes_eligible_pairs_and_durations(tmp_path: Path) -> None:
    """Class 0 alone on server 0, 3 / (10 * 1) services of one half; class 1 on server 1, 1 / (10 * 0.8) of two."""
    pairs: dict[str, Any] = {"eligible": [[True, False], [False, True]], "duration": [[0.5, 1.0], [1.0, 2.0]]}
    path = request_file(tmp_path, **pairs)
    answer = allocate(**REQUEST, **pairs)
    assert json.loads(run("allocate", str(path), "--json").stdout)["expected"] == answer.expected.tolist()
    assert answer.expected == pytest.approx(np.array([[0.3, 0.0], [0.0, 0.125]]))
    shown = run("allocate", str(path)).stdout
    assert "0.300" in shown and "0.125" in shown and "0.150" in shown and "0.250" in shown  # services, then server time


def test_simulate_reads_eligible_pairs_and_rates(tmp_path: Path) -> None:
    problem = Problem(arrival_rate=[0.3, 0.1], servers=[1, 1], mean_reward=[[0.2, 0.9], [0.5, 0.4]],
                      service_rate=[[0.5, 0.9], [0.4, 0.2]], eligible=[[True, True], [True, False]])  # fmt: skip
    problem.save(tmp_path / "fleet.toml")
    result = run("simulate", "--problem", str(tmp_path / "fleet.toml"), "--policy", "greedy", "--json", *SMALL)
    expected = simulate(problem, cli_policy("greedy"), slots=20, replications=2, seed=1).summary()
    assert json.loads(result.stdout)["queue"]["mean"] == expected["queue"].mean


def test_infinite_price_is_null(tmp_path: Path) -> None:
    result = run("allocate", str(request_file(tmp_path, capacity=[0, 0])), "--json")
    assert json.loads(result.stdout)["price"] == [None, None]


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"gamma": ...}, ["missing key 'gamma'", "a number"]),
        ({"queues": [1]}, ["unknown key 'queues'", "[1]", "known are queue, reward"]),
        ({"queue": 3}, ["queue must be a list of numbers", "got 3"]),
        ({"queue": [3, True]}, ["queue must be a list of numbers", "got [3, True]"]),
        ({"queue": [3, None]}, ["queue must be a list of numbers"]),
        ({"queue": [3, -1]}, ["queue must be non-negative", "queue[1] = -1"]),
        ({"reward": [[0.2, 0.9]]}, ["queue must have shape"]),
        ({"reward": [[0.2, 0.9], [0.5]]}, ["reward must be numeric with rows of equal length"]),
        ({"V": "10"}, ["V must be a number", "got '10'"]),
        ({"V": 0}, ["V must be positive", "V = 0"]),
        ({"gamma": 0.5}, ["gamma must be above one"]),
        ({"eligible": [[1, 0], [0, 1]]}, ["eligible must be a list of rows of true and false", "got [[1, 0], [0, 1]]"]),
        ({"duration": [1.0, 2.0]}, ["duration must be a list of rows of numbers"]),
    ],
)
def test_bad_requests_are_explained(tmp_path: Path, changes: dict[str, Any], parts: list[str]) -> None:
    path = request_file(tmp_path, **changes)
    fails(run("allocate", str(path)), str(path), *parts)


def test_unreadable_requests_are_explained(tmp_path: Path) -> None:
    fails(run("allocate", str(tmp_path / "no.json")), "no.json", "cannot be read", "No such file")
    fails(run("allocate", str(tmp_path)), "cannot be read")
    fails(run("allocate", "-", stdin="{"), "standard input", "is not valid JSON")
    fails(run("allocate", "-", stdin="[1]"), "standard input", "must contain one object", "[1]")
    (tmp_path / "latin.json").write_bytes(b"\xff")
    fails(run("allocate", str(tmp_path / "latin.json")), "is not UTF-8")


def test_simulate_prints_what_python_returns() -> None:
    result = run("simulate", "--policy", "max-weight", "--set", "V=3", "--traffic", "0.5", "--problem-seed", "4",
                 "--seed", "9", "--json", *SMALL)  # fmt: skip
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    expected = simulate(
        Problem.synthetic(traffic=0.5, seed=4), cli_policy("max-weight", V=3), slots=20, replications=2, seed=9
    )
    for name, value in expected.summary().items():
        assert printed[name] == {"mean": value.mean, "low": value.low, "high": value.high}
    assert {"policy": "max-weight", "slots": 20, "replications": 2, "seed": 9}.items() <= printed.items()
    assert printed["seconds"] > 0
    assert printed["complete"] is True


def test_simulate_takes_costs_units_breakdowns_and_recorded_arrivals(tmp_path: Path) -> None:
    """The same as in Python: costs of classes, two jobs of three units, and servers that fail."""
    arrivals = tmp_path / "arrivals.csv"
    arrivals.write_text("slot,job_class,units\n0,0,3\n5,1,3\n")
    words = ["--job-classes", "2", "--holding-cost", "7,1", "--service", "units", "--recorded", str(arrivals)]
    result = run("simulate", *SMALL, *words, "--policy", "first-come", "--breakdowns", "0.1,0.5", "--json")
    found = json.loads(result.output)
    problem = Problem.synthetic(job_classes=2, holding_cost=[7.0, 1.0], seed=0)
    runs = simulate(problem, FirstCome(), slots=20, replications=2, seed=1, service="units", capacity=Breakdowns(0.1, 0.5),
                    arrivals=Recorded([(0, 0, 3), (5, 1, 3)]))  # fmt: skip
    assert found["holding_cost"]["mean"] == pytest.approx(runs.summary()["holding_cost"].mean)
    assert found["holding_cost"]["mean"] == pytest.approx((3 * 7 + 3) / 20, rel=0.5)
    assert found["regret"]["mean"] == pytest.approx(runs.summary()["regret"].mean)
    assert found["run"]["oracle"].startswith(
        "the oracle with the rates of Recorded and the servers that Breakdowns left up"
    )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--holding-cost", "a"), ("holding-cost must be numbers",)),
        (("--service", "tasks"), ("service must be one of 'geometric', 'units'",)),
        (("--breakdowns", "0.1"), ("breakdowns must have 2 numbers",)),
        (("--breakdowns", "2,0.1"), ("fail must be at most one",)),
        (("--recorded", "missing.csv"), ("missing.csv: cannot be read",)),
    ],
)
def test_simulate_refuses_bad_settings(words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    fails(run("simulate", *SMALL, *words), *parts)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("slot,class\n", "the first line must be slot,job_class,units"),
        ("slot,job_class,units\n1,0,x\n", "must contain whole numbers"),
        ("slot,job_class,units\n1,0,0\n", "jobs units must be at least one"),
        ("slot,job_class,units\n1,99,1\n", "job classes must be below 10; got 99"),
        (
            "slot,job_class,units\n1,0,3\n",
            "jobs of several units need service 'units'; got 'geometric' and a job of 3 units",
        ),
    ],
)
def test_recorded_arrivals_are_checked(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "arrivals.csv"
    file.write_text(text)
    fails(run("simulate", *SMALL, "--recorded", str(file)), part)


def test_simulate_takes_an_allocator() -> None:
    table = '{"kind": "rounds", "k": 3, "penalty": "power:4"}'
    result = run("simulate", "--set", "V=9", "--set", f"allocation={table}", "--json", *SMALL)
    policy = Sabr(V=9, allocation=Rounds(3, Power(4.0)))
    expected = simulate(Problem.synthetic(seed=0), policy, slots=20, replications=2, seed=1).summary()
    assert json.loads(result.stdout)["queue"]["mean"] == expected["queue"].mean
    assert run("simulate", "--set", "allocation=rounds").exit_code == 2


def cli_policy(kind: str, **options: Any) -> Any:
    from bilinq.policies.registry import make_policy

    return make_policy(kind, options)


def test_one_replication_has_null_intervals() -> None:
    result = run("simulate", "--policy", "random", "--slots", "5", "--replications", "1", "--json")
    assert json.loads(result.stdout)["regret"]["low"] is None


def test_random_instances_are_drawn_one_after_the_other() -> None:
    result = run("simulate", "--policy", "random", "--instances", "random", "--problem-seed", "5", "--json", *SMALL)
    problems = [Problem.synthetic(seed=5), Problem.synthetic(seed=6)]
    expected = simulate(problems, cli_policy("random"), slots=20, seed=1).summary()
    assert json.loads(result.stdout)["reward"]["mean"] == expected["reward"].mean


def test_simulate_reads_a_problem_and_shows_a_table(tmp_path: Path) -> None:
    Problem.synthetic(job_classes=3, seed=1).save(tmp_path / "p.toml")
    result = run("simulate", "--problem", str(tmp_path / "p.toml"), "--set", "target_wait=3", *SMALL)
    assert result.exit_code == 0, result.output
    assert "regret at the end" in result.stdout


@pytest.mark.parametrize(
    "policy", ["sabr", "ugda-ol", "known-rewards", "max-weight", "greedy", "random", "first-come", "static-split"]
)
def test_every_policy_runs(policy: str) -> None:
    options = ["--servers", "1,3", "--dimension", "2,3", "--service-rate", "0.9", "--noise", "0.2"]
    result = run("simulate", "--policy", policy, *options, *SMALL)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--policy", "best"], ["policy must be one of 'sabr'", "got 'best'"]),
        (["--set", "radius=huge"], ["radius must be one of", "got 'huge'"]),
        (["--set", "v=3"], ["unknown option of policy 'sabr': 'v'", "known are V"]),
        (["--set", "V"], ["a setting must read key=value", "got 'V'"]),
        (["--servers", "four"], ["servers must be whole numbers", "got 'four'"]),
        (["--servers", "3"], ["servers must be a multiple"]),
        (["--slots", "0"], ["slots must be a whole number of at least 1", "got 0"]),
        (["--replications", "0"], ["replications must be", "got 0"]),
        (["--slots", "1" + "0" * 11], ["slots must be at most 1,000,000,000; got 1000"]),
        (["--slots", "1000000000"], ["job classes must be at most 2,000,000,000; got 1,000,000,000 * 10 * 10"]),
        (["--replications", "1" + "0" * 9], ["replications must be at most 1,000,000; got 1000"]),
        (["--job-classes", "1" + "0" * 8], ["job_classes must be at most 1,000,000; got 1000"]),
        (["--server-classes", "1" + "0" * 8], ["server_classes must be at most 1,000,000; got 1000"]),
        (["--dimension", "1000000"], ["dimension must be at most 10,000; got 1000000"]),
        (
            ["--traffic", "1e12", "--arrivals", "poisson", "--servers", "4" + "0" * 12],
            ["arrival_rate must be at most 10,000,000"],
        ),
        (["--seed", "-1"], ["seed must be", "got -1"]),
        (["--instances", "some"], ["instances must be one of", "got 'some'"]),
        (["--arrivals", "none"], ["arrivals must be one of", "got 'none'"]),
        (["--traffic", "2"], ["at most one per slot for Bernoulli arrivals"]),
        (["--problem", "nowhere.json"], ["nowhere.json: cannot be read"]),
        (["--problem", "x.json", "--traffic", "1"], ["file and traffic exclude each other"]),
        (["--problem", "x.json", "--instances", "random"], ["instances must be 'fixed'"]),
    ],
)
def test_bad_simulations_are_explained(words: list[str], parts: list[str]) -> None:
    fails(run("simulate", *words), *parts)


def test_a_problem_file_that_no_memory_holds_is_refused(tmp_path: Path) -> None:
    """Few numbers in a file may mean many in memory: those of all pairs, and jobs that arrive."""
    one = {"arrival_rate": [1e12], "servers": [3e12], "mean_reward": [[0.5]]}
    (tmp_path / "jobs.json").write_text(json.dumps(one))
    fails(
        run("simulate", "--problem", str(tmp_path / "jobs.json"), "--arrivals", "poisson"),
        "arrival_rate must be at most",
    )
    many = {"arrival_rate": [0.0] * 20_000, "servers": [1] * 20_000, "theta": [[0.5]]}
    many |= {"job_features": [[1.0]] * 20_000, "server_features": [[1.0]] * 20_000}
    (tmp_path / "pairs.json").write_text(json.dumps(many))
    rule = "job classes * server classes must be at most 100,000,000; got 20,000 * 20,000"
    fails(run("simulate", "--problem", str(tmp_path / "pairs.json")), "pairs.json", rule)


def test_an_overloaded_problem_is_a_warning() -> None:
    words = ["simulate", "--servers", "2", "--traffic", "3", "--arrivals", "poisson", "--policy", "greedy", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "bilinq.commands.app", *words, *SMALL], capture_output=True, text=True, check=True
    )
    assert done.stderr.startswith("warning: traffic intensity 3 is not below")
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout)["regret"]["mean"] is None


def test_an_interrupted_simulation_prints_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, slots: int, **options: Any) -> Runs:
        import dataclasses

        return dataclasses.replace(simulate(*arguments, slots=slots - 5, **options), complete=False)

    monkeypatch.setattr("bilinq.simulation.simulate", interrupted)
    result = run("simulate", "--policy", "random", "--json", *SMALL)
    assert result.exit_code == cli.INTERRUPTED
    assert "interrupted after 15 of 20 slots" in result.stderr
    assert json.loads(result.stdout)["slots"] == 15


def test_bench_needs_the_source_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(development, "__file__", str(tmp_path / "lib" / "bilinq" / "commands" / "development.py"))
    fails(run("bench"), "benchmarks need the source tree")


def test_bench_passes_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fake benchmark suite writes the arguments that it was called with."""
    (tmp_path / "bench").mkdir()
    script = "import json, pathlib, sys\nprint('table')\nw = sys.argv[1:]\n"
    script += "pathlib.Path(w[w.index('--out') + 1]).write_text(json.dumps(w))\n"
    (tmp_path / "bench" / "__main__.py").write_text(script)
    monkeypatch.setattr(development, "__file__", str(tmp_path / "src" / "bilinq" / "commands" / "development.py"))
    target = tmp_path / "result.json"
    assert run("bench", "--out", str(target), "--only", "a", "--only", "b", "--quick").exit_code == 0
    assert json.loads(target.read_text()) == ["--only", "a", "--only", "b", "--out", str(target), "--quick"]


def test_version_and_help() -> None:
    from importlib.metadata import version

    assert run("--version").stdout == f"bilinq {version('bilinq')}\n"
    for words in ([], ["allocate"], ["simulate"], ["sweep"], ["bench"], ["warm"]):
        assert run(*words, "--help").exit_code == 0


def test_the_list_of_commands_cuts_no_text() -> None:
    shown = run("--help").stdout.partition("Commands:")[2]
    assert "serve" in shown
    assert "..." not in shown


def test_warm_reports_each_step() -> None:
    lines = run("warm").stdout.splitlines()
    assert lines[0] == f"compiling kernels, step 1 of {len(lines) - 1}: allocation of a small program"
    assert lines[-1].startswith("kernels ready after ")


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Run a command on a machine where a package is missing."""

    def load(*_: Any) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr("bilinq.experiments.sweep.load", load)
    return run("sweep", "x.toml")


@pytest.mark.parametrize(("package", "extra"), [("httpx", "live"), ("psycopg.errors", "postgres"), ("pyarrow", "lab")])
def test_a_missing_extra_is_named(package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(without(package, monkeypatch), f"bilinq[{extra}] is not installed; run: pip install 'bilinq[{extra}]'")


def test_another_missing_package_is_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(without("unknown", monkeypatch).exception, ModuleNotFoundError)


def test_serve_has_an_option_for_each_setting() -> None:
    shown = " ".join(run("serve", "--help").stdout.split())
    for name, setting in SETTINGS.items():
        assert f" --{name.replace('_', '-')} " in shown
        assert setting.description in shown
    assert "--work-conserving / --may-idle" in shown
    assert "--exploration [thompson|ucb|none]" in shown
    assert "[default: 8000]" in shown
    assert "rival" not in shown


def test_options_of_serve_become_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = list[ServiceSettings]()
    monkeypatch.setattr("bilinq.commands.serve._run", lambda settings, json: found.append(settings))
    file = tmp_path / "service.toml"
    file.write_text("slot = 0.1\nlease = 20.0\n")
    result = run("serve", "--config", str(file), "--slot", "0.2", "--V", "5", "--reward-high", "2", "--work-conserving",
                 "--metrics", "open", "--seed", "3")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert found == [
        ServiceSettings(
            slot=0.2, lease=20.0, V=5.0, reward=RewardBounds(0.0, 2.0), work_conserving=True, metrics="open", seed=3
        )
    ]
    fails(run("serve", "--exploration", "all"), "--exploration: must be one of thompson, ucb, none; got 'all'")


@pytest.mark.filterwarnings("default")
def test_old_names_of_options_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[ServiceSettings]()
    monkeypatch.setattr("bilinq.commands.serve._run", lambda settings, json: found.append(settings))
    result = run("serve", "--rival-url", "http://127.0.0.1:9", "--rival-key", "k", "--baseline-key", "new")
    assert found == [ServiceSettings(baseline_url="http://127.0.0.1:9", baseline_key="new")]
    warned = "warning: --rival-url is deprecated and will be removed in the next version; use --baseline-url"
    assert result.stderr.splitlines()[0] == warned
    result = run("serve", "--rival")
    assert result.stderr.endswith("error: --fleet and --baseline are options of --demo; add --demo\n")


def test_help_loads_nothing_heavy() -> None:
    """Imports decide how fast `bilinq --help` is; a time limit would depend on the load of the machine."""
    heavy = "{'numpy', 'numba', 'scipy', 'rich', 'matplotlib', 'httpx'}"
    code = "import sys; from bilinq.commands.app import app; app(['--help'], standalone_mode=False); "
    code += f"assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_bar_appears_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with tables.Bar("slots", patience=0.0) as bar:
            bar(1, 2)
            bar(2, 2)
        assert ("slots" in stream.getvalue()) is shown
