"""The metrics page that Prometheus reads, and the metrics of the process."""

import math
import os
import resource
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from bilinq.live.metrics.meters import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})

Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float]]


class Page:
    """A page of metrics; each method adds one metric with its samples.

    Examples
    --------
    >>> page = Page()
    >>> page.gauge("jobs_queued", "Jobs in the queue.", [({"job_class": "chat"}, 3)])
    >>> print(page.text(), end="")
    # HELP jobs_queued Jobs in the queue.
    # TYPE jobs_queued gauge
    jobs_queued{job_class="chat"} 3
    """

    def __init__(self) -> None:
        self._lines: list[str] = []

    def text(self) -> str:
        """Return the page."""
        return "\n".join(self._lines) + "\n"

    def gauge(self, name: str, about: str, samples: Samples | float) -> None:
        """Add a gauge: a value that rises and falls."""
        self._plain(name, "gauge", about, samples)

    def counter(self, name: str, about: str, samples: Samples | float) -> None:
        """Add a counter: a value that only rises; its name ends in _total."""
        self._plain(name, "counter", about, samples)

    def summary(self, name: str, about: str, samples: Iterable[tuple[Labels, int, float]]) -> None:
        """Add a summary; each sample has labels, the count of values and their sum."""
        self._head(name, "summary", about)
        for labels, count, total in samples:
            self._sample(f"{name}_sum", _braces(labels), total)
            self._sample(f"{name}_count", _braces(labels), count)

    def histogram(self, name: str, about: str, samples: Iterable[tuple[Labels, Histogram]]) -> None:
        """Add histograms; buckets are cumulative, as the format requires."""
        self._head(name, "histogram", about)
        for labels, histogram in samples:
            inside, many = _inside(labels), 0
            start = f"{name}_bucket{{{inside}," if inside else f"{name}_bucket{{"
            for end, count in zip(_ends(histogram.bounds), list(histogram.counts), strict=True):
                many += count
                self._lines.append(f"{start}{end} {many}")
            self._sample(f"{name}_sum", _braces(labels), histogram.total)
            self._sample(f"{name}_count", _braces(labels), many)

    def _plain(self, name: str, kind: str, about: str, samples: Samples | float) -> None:
        self._head(name, kind, about)
        for labels, value in [({}, samples)] if isinstance(samples, int | float) else samples:
            self._sample(name, _braces(labels), value)

    def _head(self, name: str, kind: str, about: str) -> None:
        self._lines.append(f"# HELP {name} {about.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}")

    def _sample(self, name: str, labels: str, value: float) -> None:
        self._lines.append(f"{name}{labels} {_number(value)}")


def _inside(labels: Labels) -> str:
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])


def _braces(labels: Labels) -> str:
    return f"{{{_inside(labels)}}}" if labels else ""


@lru_cache(4096)
def _escaped(value: str) -> str:
    return value.translate(_ESCAPES)


@lru_cache
def _ends(bounds: tuple[float, ...]) -> list[str]:
    """Return the last label of each bucket, with the closing brace."""
    return [f'le="{_number(bound)}"}}' for bound in (*bounds, math.inf)]


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


STATUS = Path("/proc/self")


def add_process(page: Page) -> None:
    """Add start time, CPU time, memory and open files; values that the system does not report are left out."""
    page.gauge("process_start_time_seconds", "When the process started, in seconds since 1970.", STARTED)
    used = os.times()
    page.counter("process_cpu_seconds_total", "CPU seconds used.", used.user + used.system)
    memory = resident()
    if memory is not None:
        page.gauge("process_resident_memory_bytes", "Resident memory.", memory)
    if (STATUS / "fd").is_dir():
        page.gauge("process_open_fds", "Open files and connections.", len(list((STATUS / "fd").iterdir())))
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    page.gauge("process_max_fds", "Most files and connections that may be open.", most)


def resident() -> int | None:
    """Return the bytes of resident memory, or None if the system does not report it."""
    try:
        return int((STATUS / "statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return None


def _started() -> float:
    """Return the start time of the process; if the system does not report it, the time when this module was loaded."""
    try:
        ticks = float((STATUS / "stat").read_text().rpartition(")")[2].split()[19])
        booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    except OSError:
        return time.time()
    return float(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")


STARTED = _started()
