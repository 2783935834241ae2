"""The page of metrics, parsed by the parser of the official Prometheus client."""

import math
import os
import time

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bilinq.live.metrics import Histogram
from bilinq.live.metrics.meters import WAITS
from bilinq.live.metrics.page import Page, add_process
from bilinq.policies import FirstCome, Sabr
from bilinq.scheduler.classes import JobClass, ServerClass
from bilinq.scheduler.scheduler import Scheduler


def only(page: Page) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples of a page with one metric by name and labels."""
    (family,) = parse(page.text())
    return {(one.name, tuple(one.labels.items())): one.value for one in family.samples}


def test_a_histogram_is_cumulative() -> None:
    histogram, values = Histogram((0.1, 1.0, 10.0)), [0.05, 0.1, 0.5, 1.0, 2.0, 100.0]
    for value in values:
        histogram.add(value)
    page = Page()
    page.histogram("wait_seconds", "About.", [({"job_class": "a"}, histogram)])
    found = only(page)
    for bound in (0.1, 1.0, 10.0, math.inf):
        shown = "+Inf" if bound == math.inf else str(bound)
        expected = sum(value <= bound for value in values)
        assert found["wait_seconds_bucket", (("job_class", "a"), ("le", shown))] == expected
    assert found["wait_seconds_count", (("job_class", "a"),)] == len(values)
    assert found["wait_seconds_sum", (("job_class", "a"),)] == pytest.approx(sum(values))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a,b{c}=d", "é 漢", "\\n", 'end\\"', ""])
def test_any_class_name_is_parsed_back(name: str) -> None:
    page = Page()
    page.counter("jobs_total", 'About\nlines, \\ and "quotes".', [({"job_class": name}, 3)])
    (family,) = parse(page.text())
    assert family.samples[0].labels == {"job_class": name}
    assert family.documentation == 'About\nlines, \\ and "quotes".'
    assert (family.type, family.samples[0].value) == ("counter", 3.0)


@pytest.mark.parametrize("value", [0, 1, 10**15, 0.1, 1e-300, -2.5, math.inf, -math.inf, math.nan])
def test_any_number_is_parsed_back(value: float) -> None:
    page = Page()
    page.gauge("some", "About.", value)
    np.testing.assert_equal(only(page)["some", ()], float(value))


def test_a_summary_has_sum_and_count() -> None:
    page = Page()
    page.summary("reward", "About.", [({"job_class": "a"}, 4, -1.5)])
    assert only(page) == {("reward_sum", (("job_class", "a"),)): -1.5, ("reward_count", (("job_class", "a"),)): 4.0}


def test_the_process_is_this_one() -> None:
    page = Page()
    add_process(page)
    found = {family.name: family.samples[0].value for family in parse(page.text())}
    assert 0.0 < time.time() - found["process_start_time_seconds"] < 86_400.0
    assert found["process_cpu_seconds"] == pytest.approx(sum(os.times()[:2]), abs=0.1)
    assert 1e7 < found["process_resident_memory_bytes"] < 1e11
    assert 0 < found["process_open_fds"] < found["process_max_fds"]


def test_bounds_rise() -> None:
    assert list(WAITS) == sorted(set(WAITS))


def test_health_reports_observations_and_condition() -> None:
    """Features (1) and (1, 0) or (0, 1): Lambda is the ridge, 0.01, plus a count for each server class."""
    scheduler = Scheduler(
        [JobClass("a", [1.0])], [ServerClass("x", [1.0, 0.0]), ServerClass("y", [0.0, 1.0])], reward=(0.0, 10.0),
        policy=Sabr.for_scheduler(),
    )  # fmt: skip
    empty = scheduler.health()
    assert empty is not None
    assert (empty.observations, empty.condition) == (0, 1.0)
    assert empty.smallest == pytest.approx(0.01)
    rng = np.random.default_rng(0)
    scheduler.observe(("a", "x", float(reward)) for reward in rng.normal(5.0, 0.5, 400))
    scheduler.assign({"x": 1})
    seen = scheduler.health()
    assert seen is not None
    assert seen.observations == 400
    assert [seen.smallest, seen.largest] == pytest.approx([0.01, 400.01])
    assert seen.condition == pytest.approx(40_001.0)
    assert seen.noise == pytest.approx(0.5, rel=0.1)


def test_a_policy_that_does_not_learn_has_no_health() -> None:
    scheduler = Scheduler([JobClass("a", [1.0])], [ServerClass("x", [1.0])], policy=FirstCome())
    assert scheduler.health() is None
