"""The demo as a user sees it: something to watch, a clean end in all cases, and a second start that continues."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from demo_process import PAGE, DemoProcess, is_locked, processor_seconds, reach, watch
from process import wait_for

START = 4.0
"""Processor seconds of the service until the first leases; on an idle machine they are seconds."""
END = 10.0
"""Seconds to end while other tests keep the machine busy; alone it takes about two."""


def has_learnt(state: dict[str, Any]) -> bool:
    return bool(state["counters"].get("rewards", 0) >= 40)


def knows_some_better(state: dict[str, Any]) -> bool:
    """Return whether some pairs are known twice as well as others."""
    return bool(np.min(state["width"]) < 0.5 * np.max(state["width"]))


def refused(demo: DemoProcess) -> str:
    """Return the output of a demo that does not start."""
    with demo:
        output, _ = demo.child.communicate(timeout=60.0)
        assert demo.child.returncode == 2, output
        return str(output)


def ends(demo: DemoProcess, number: int, *, group: bool) -> None:
    """End a demo cleanly: soon, with exit code 0, and without processes or locks left behind."""
    code, seconds = demo.end(number, group=group)
    assert code == 0 and seconds < END, f"exit code {code} after {seconds:.1f} s\n{demo.log()}"
    assert len(demo.pids) == 4 and not demo.left()
    assert not is_locked(demo.folder / "demo.db")
    assert "level=error" not in demo.log() and "Traceback" not in demo.log()


def test_there_is_something_to_watch_and_a_second_start_goes_on(tmp_path: Path) -> None:
    with DemoProcess(tmp_path, "--port", "0") as demo, demo.open() as client:
        watch(client, lambda state: state["counters"].get("leased", 0) > 5)
        assert processor_seconds(demo.named("service")[0]) < START
        assert demo.lines[-3] == (
            "Fleet: training jobs on GPUs with measured speeds, 12 servers. The scheduler has learnt nothing yet."
        )
        port = str(client.base_url.port)
        elsewhere = tmp_path / "other"
        elsewhere.mkdir()
        assert f"error: --port must be free; {port} is not" in refused(DemoProcess(elsewhere, "--port", port))
        assert "demo.db is in use by process" in refused(DemoProcess(tmp_path, "--port", "0"))
        before = watch(client, lambda state: has_learnt(state) and knows_some_better(state))
        watch(client, lambda state: [one["busy"] + one["idle"] for one in state["server_classes"]] == [4, 4, 4])
        ends(demo, signal.SIGINT, group=True)

    with DemoProcess(tmp_path, "--port", "0") as again, again.open() as client:
        assert ". The scheduler continues with " in again.lines[-3]
        after = client.get("/v1/state").raise_for_status().json()
        kept = np.array(after["width"]) / np.array(before["width"])  # of one who forgets all it is about ten
        assert kept.max() < 2.0, "nothing was forgotten; widths also follow the noise as it is estimated by now"
        assert np.corrcoef(np.ravel(before["mean"]), np.ravel(after["mean"]))[0, 1] > 0.7
        watch(client, lambda state: state["counters"].get("rewards", 0) > 5)
        ends(again, signal.SIGTERM, group=False)


def test_a_worker_that_is_killed_comes_back_and_nothing_outlives_a_killed_demo(tmp_path: Path) -> None:
    with DemoProcess(tmp_path, "--port", "0", "--fleet", "paper") as demo, demo.open() as client:
        watch(client, lambda state: state["counters"].get("leased", 0) > 5)
        killed = demo.named("traffic workers")[0]
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: len(demo.named("traffic workers")) == 2 and killed not in demo.named("traffic workers"))
        served = client.get("/v1/state").json()["counters"]["done"]
        watch(client, lambda state: state["counters"]["done"] > served + 5)
        demo.pids = demo.children()
        demo.end(signal.SIGKILL)
        wait_for(lambda: not demo.left(), END + 5.0)
        assert not is_locked(tmp_path / "demo.db")


def test_ctrl_c_while_it_starts(tmp_path: Path) -> None:
    with DemoProcess(tmp_path, "--port", "0", "--fleet", "trace") as demo:
        wait_for(lambda: len(demo.children()) == 4)
        demo.pids = demo.children()
        ends(demo, signal.SIGINT, group=True)


def test_a_baseline_gets_the_same_jobs_and_is_shown(tmp_path: Path) -> None:
    with DemoProcess(tmp_path, "--port", "0", "--fleet", "paper", "--baseline") as demo, demo.open() as client:
        baseline = PAGE.search(demo.lines[-1])
        assert baseline is not None and demo.lines[-1].startswith("Baseline, first come, first served: http")
        sample = wait_for(lambda: with_baseline(client), 60.0)
        assert sample["rival"]["name"] == "first-come" and sample["rival"]["wait_p50"] >= 0.0
        watch(client, lambda state: state["counters"].get("submitted", 0) > 10)
        with reach(baseline) as other:
            assert other.get("/v1/knobs").json()["policy"] == "first-come"
            ours, theirs = newest_jobs(client), newest_jobs(other)
        both = ours.keys() & theirs.keys()
        assert len(both) > 5 and all(ours[number] == theirs[number] for number in both)
        code, _ = demo.end(signal.SIGINT, group=True)
        assert code == 0 and len(demo.pids) == 7 and not demo.left()
        assert not is_locked(tmp_path / "demo.db") and not is_locked(tmp_path / "demo-baseline.db")


def with_baseline(client: httpx.Client) -> Any:
    """Return the newest sample if it has a baseline whose jobs have been served."""
    samples = client.get("/v1/history?limit=1").raise_for_status().json()["moments"]
    found = samples and samples[-1]["rival"]
    return samples[-1] if found and found["wait_p50"] is not None else None


def newest_jobs(client: httpx.Client) -> dict[int, Any]:
    """Return class, length and luck of jobs by number."""
    jobs = client.get("/v1/jobs?limit=100").raise_for_status().json()["jobs"]
    return {job["payload"]["number"]: (job["class"], job["payload"]) for job in jobs}
