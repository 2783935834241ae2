"""The benchmarks of the live service, small: that they do their work, not how fast it is."""

import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from bench import live
from bench.live import commits
from bench.live.load import Load, Plan
from bench.live.slots import Size, slot_seconds
from bench.live.slow_disk import slow_disk


def test_slots_are_measured_and_records_are_short() -> None:
    """300 bytes hold the eleven best of the server classes."""
    spent = slot_seconds(Size(4, 14, 60, 20, features=2, own=3), slots=4)
    assert spent.cpu.shape == spent.wall.shape == (4,) and (spent.cpu > 0.0).all()
    assert 250 < spent.record <= live.RECORD


def test_the_bounds_of_slots_are_reported() -> None:
    """A bound that nothing meets is listed as missed."""
    small = Size(2, 2, 20, 2)
    with patch.dict(live.SIZES, {"small": (small, 1e6, 1e6), "too slow": (small, 0.0, 0.0)}, clear=True):
        report = live.slots(times=2)
    assert [row[0] for row in report.rows] == ["small", "too slow"]
    assert [bound.met for bound in report.bounds] == [True, True, True, False, False, True]


@pytest.mark.parametrize("queued", [False, True])
def test_operations_on_a_slow_disk(queued: bool) -> None:
    with patch.object(commits, "BEFORE", 100), patch.object(commits, "OPEN", 5):
        spent = commits.seconds(100.0, 0.3, rounds=1, disk=partial(slow_disk, queued=queued))
    assert min(map(len, spent)) > 0 and min(map(min, spent)) > 0.001  # each operation waits for a sync


def test_a_slow_disk_is_used_only_inside_of_its_block(tmp_path: Path) -> None:
    def write(name: str) -> None:
        with sqlite3.connect(tmp_path / name) as db:
            db.execute("CREATE TABLE one (x)")
        db.close()

    with slow_disk(queued=True) as disk:
        write("slow")
        synced = disk.syncs
    write("usual")
    assert 0 < synced == disk.syncs


def test_a_load_has_jobs_with_features_and_keys() -> None:
    own = Load(Plan("", 0, "", 1, keyed=True, features=16))._own()
    assert len(own["features"]) == 16 and own["key"]
    assert Load(Plan("", 0, "", 1))._own() == {}


def test_attacks_are_measured() -> None:
    """In a process of its own, since it changes how many files its process may open."""
    command = [sys.executable, "-m", "bench.live.attacks", "nested_bodies"]
    root = Path(live.__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120.0, check=True)
    *_, row = done.stdout.strip().splitlines()
    attack, trials, wait, _ = (cell.strip() for cell in row.strip("|").split("|"))
    assert attack.startswith("Bodies of 80 kB") and int(trials) == 20
    assert 0.0 < float(wait) < 30.0
