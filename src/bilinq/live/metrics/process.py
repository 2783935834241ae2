"""The process in numbers, under the names that all Prometheus clients use."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from bilinq.live.metrics.page import Page

STATUS = Path("/proc/self")


def add_process(page: Page) -> None:
    """Add start, time on the processor, memory and open files; what the system does not tell is left out."""
    page.gauge("process_start_time_seconds", "When the process started, in seconds since 1970.", STARTED)
    used = os.times()
    page.counter("process_cpu_seconds_total", "Seconds on the processor.", used.user + used.system)
    memory = resident()
    if memory is not None:
        page.gauge("process_resident_memory_bytes", "Memory in use.", memory)
    if (STATUS / "fd").is_dir():
        page.gauge("process_open_fds", "Open files and connections.", len(list((STATUS / "fd").iterdir())))
    page.gauge("process_max_fds", "Most of them.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def resident() -> int | None:
    """Return the bytes of memory in use, or None where the system does not tell."""
    try:
        return int((STATUS / "statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return None


def _started() -> float:
    """Return when the process started: as the system tells, or else when this module was loaded."""
    try:
        ticks = float((STATUS / "stat").read_text().rpartition(")")[2].split()[19])
        booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    except OSError:
        return time.time()
    return float(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


STARTED = _started()
