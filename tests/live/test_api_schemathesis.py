"""Schemathesis over the OpenAPI document of a real service: examples, edge cases, random and stateful requests."""

import re
import subprocess
import sys
from pathlib import Path

from process import Process, make_key

from bilinq.live.http.app import ROUTES

pytest_plugins = ["databases"]

EXAMPLES = {"sqlite": 20, "postgresql": 8}
"""Random requests for each operation and mode, in addition to edge cases and chains of calls, by database."""

CONFIG = """
seed = 1
[generation]
database = "none"
[parameters]
"query.wait" = 0
"query.seconds" = 0
[checks.positive_data_acceptance]
# A schema cannot say everything: features that have another length than those of other classes, rewards outside of the
# range, a number such as 3.0 where a whole one is meant. These are answered with 422 and the field.
expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429"]
[checks.not_a_server_error]
expected-statuses = ["2xx", "4xx"]
[checks.use_after_free]
# DELETE cancels a job, which can still be looked up afterwards.
enabled = false
"""


def run(folder: Path, address: str, key: str, examples: int, *words: str) -> str:
    """Run all checks and return the report; a failure of any is a failure of the test."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", f"{address}/openapi.json",
         "--header", f"Authorization: Bearer {key}", "--max-examples", str(examples),
         "--request-timeout", "20", "--no-color", *words],
        capture_output=True, text=True, cwd=folder, timeout=540,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


LAST = ("cancel_jobs", "revoke_key", "rotate_key")
"""Calls that are tested separately: they cancel the jobs that other calls need, or may end the key in use."""


def _each(option: str) -> list[str]:
    return [word for name in LAST for word in (option, name)]


def test_every_response_is_as_described(tmp_path: Path, database_url: str) -> None:
    """Keys are revoked and rotated last and separately: Schemathesis soon finds the key that it uses.

    So are all jobs of a class cancelled: no lease would be left to fail.
    """
    key, examples = make_key(database_url, "admin"), EXAMPLES[database_url.partition(":")[0]]
    with Process(tmp_path, database_url, "--backlog", "1000000") as process, process.client(key) as client:
        client.post("/v1/jobs", json={"jobs": [{"class": "short"}] * 1000})
        report = run(tmp_path, process.address, key, examples, *_each("--exclude-operation-id"))
        assert f"Tested: {len(ROUTES) - len(LAST) - 1}" in report  # all but these, and the document itself
        assert int(re.search(r"(\d+) generated", report)[1]) > 2 * examples * len(ROUTES)  # type: ignore[index]
        assert client.get("/v1/me").status_code == 200
        counters = client.get("/v1/state").json()["counters"]
        assert counters["submitted"] > 1000
        assert min(counters[name] for name in ("leased", "failed", "cancelled")) > 0
        run(tmp_path, process.address, key, examples, *_each("--include-operation-id"), "--phases", "coverage,fuzzing")
        failed = [event for event in process.events() if event["level"] in ("error", "warning")]
        assert failed == []
        assert process.stop() == 0
