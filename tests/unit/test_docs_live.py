"""The pages on the live service are true: their commands run, their tests exist, their settings are those of the service."""

import re
from pathlib import Path

import pytest
from msgspec import to_builtins

from bilinq.live.settings import ServiceSettings
from pages import ROOT, page, run, script, section

LIVE, README, RELIABILITY = page("docs/live.md"), page("README.md"), page("docs/reliability.md")
SERVE = page("docs/tutorial-serve.md")


def test_jobs_from_the_command_line_and_watching_work_as_written(tmp_path: Path) -> None:
    begin = (
        script(section(SERVE, title), tmp_path) for title in ("1. Name your jobs and servers", "2. Start the service")
    )
    start = "\n".join([*begin, script(section(LIVE, "Jobs"), tmp_path)])
    printed = run(f"{start}\nsleep 2\n{script(section(LIVE, 'Watching'), tmp_path)}", tmp_path)
    assert len(re.findall(r"^j\d+\tdone\t0\.5\b", printed, re.MULTILINE)) == 3, printed
    assert "queues: " in printed
    assert re.search(r"^[0-9a-f]{8}-\d+ {'chat': \d+, 'code': \d+} ", printed, re.MULTILINE)


def test_the_example_of_the_readme_works_with_the_classes_of_the_tutorial(tmp_path: Path) -> None:
    script(section(SERVE, "1. Name your jobs and servers"), tmp_path)
    commands = script(section(README, "As a running service"), tmp_path)
    assert run(f"{commands}\npython worker.py &\npython client.py\n", tmp_path).endswith("done\n")


def test_a_script_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no-such-option"):
        run(script("```sh\nbilinq keys create --no-such-option\ntrue\n```\n", tmp_path), tmp_path)


def test_every_promise_has_a_test() -> None:
    rows = re.findall(
        r"^\| .+ \| `(tests/\S+)::(test_\w+)` \|$", section(LIVE, "What is promised, and which test keeps it"), re.M
    )
    assert len(rows) > 20
    for file, name in rows:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"


def test_every_attack_and_fault_has_a_test() -> None:
    rows = re.findall(r"^\| (?!attack|fault|promise|file|`\w+\.py`|---).* \|$", RELIABILITY, re.M)
    assert rows
    for row in rows:
        named = re.findall(r"`(tests/\S+)::(test_\w+)`", row.split(" | ")[-1])
        assert named, f"no test in {row}"
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"


def test_the_table_of_settings_is_complete_and_right() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section(LIVE, "Settings"), re.M))
    defaults = to_builtins(ServiceSettings())
    assert list(rows) == list(defaults)
    for name, value in defaults.items():
        if name == "reward":
            assert rows[name] == f"{value['low']:g} to {value['high']:g}"
        else:
            shown = (
                "none" if value in (None, [], ()) else f"`{str(value).lower() if value in (True, False) else value}`"
            )
            assert rows[name] == shown, name
