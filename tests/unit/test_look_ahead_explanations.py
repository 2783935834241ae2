"""Explanations of decisions of the default scheduler."""

from typing import Any

import numpy as np
import pytest
from default_scheduler import mean, scheduler

from bilinq import BadInput, Scheduler
from bilinq.scheduler.explain import Decision
from bilinq.scheduler.look_ahead import LookAhead


def taught(**options: Any) -> Scheduler:
    """Return a scheduler that knows that p is better for chat, with rewards from 0 to 10."""
    one = scheduler(reward=(0.0, 10.0), **options)
    rng = np.random.default_rng(3)
    for _ in range(15):
        one.observe([("chat", "p", 6.0 + rng.uniform(-1.0, 1.0)), ("chat", "q", 5.0 + rng.uniform(-1.0, 1.0))])
    one.assign({"p": 2, "q": 2})
    return one


def test_options_are_sorted_and_their_probabilities_sum_to_one() -> None:
    one = taught()
    waiting, assigned = one.submit("chat"), one.submit("code")
    for _ in range(4):
        one.submit("code")
    told = [one.explain(waiting)]
    assert told[0].chosen is None and told[0].probability is None
    assert told[0].second == told[0].options[0]
    tasks = one.assign({"p": 2, "q": 2})
    told += [one.explain(task.job) for task in tasks]
    assert assigned in {each.job for each in told}
    for each in told:
        scores = [option.score for option in each.options]
        assert len(scores) == 2 and scores == sorted(scores, reverse=True)
        assert abs(sum(option.probability for option in each.options) - 1.0) < 1e-12
        assert min(option.price for option in each.options) == 0.0
        for option in each.options:
            assert abs(option.score - (option.value - option.price)) < 1e-9
            assert 0.0 <= option.value <= 10.0 and option.uncertainty > 0.0 and option.duration > 0.0


def test_choice_and_second_are_named() -> None:
    one = taught()
    one.submit("chat")
    [task] = one.assign({"p": 1, "q": 1})
    told = one.explain(task.job)
    assert (told.job, told.job_class, told.chosen) == (task.job, "chat", task.server_class)
    assert told.second is not None and {told.chosen, told.second.server_class} == {"p", "q"}
    [own] = [option for option in told.options if option.server_class == told.chosen]
    assert told.probability == own.probability


def test_explanation_is_in_the_caller_s_units() -> None:
    """Value and uncertainty are those of `beliefs`, for a job like all of its class."""
    one = taught()
    known = one.beliefs()
    assert known is not None
    for option in one.explain(one.submit("chat")).options:
        column = ["p", "q"].index(option.server_class)
        assert abs(option.value - known.mean[0, column]) < 1e-9
        assert abs(option.uncertainty - known.width[0, column]) < 1e-9
    assert 5.0 < mean(one, "chat", "p") < 7.0


def test_best_score_is_chosen_without_exploration() -> None:
    """Nothing is drawn, so the choice has the best score, and is certain."""
    one = taught(exploration="none")
    for _ in range(10):
        one.submit("chat")
        one.submit("code")
        tasks = one.assign({"p": 2, "q": 2})
        for task in tasks:
            told = one.explain(task.job)
            assert told.options[0].score - 1e-9 <= max(
                option.score for option in told.options if option.server_class == told.chosen
            )
            one.report(task.job, 5.0)


def test_probability_without_exploration_is_one() -> None:
    """Values that differ by little are not drawn, so the better server is chosen for certain."""
    one = scheduler(exploration="none")
    one.observe([("chat", "p", 0.5), ("chat", "q", 0.45)] * 5)
    one.submit("chat")
    [task] = one.assign({"p": 1, "q": 1})
    assert task.server_class == "p"
    assert one.explain(task.job).probability == pytest.approx(1.0, abs=1e-6)


def test_probability_is_how_often_a_server_is_chosen() -> None:
    """Over 1,500 jobs that differ only in their draws; five standard errors of a part are 0.065, and a half is rejected."""
    one = scheduler(reward=(0.0, 10.0), V=100.0)
    one.observe([("chat", "p", 5.0), ("chat", "q", 5.0), ("chat", "p", 5.6), ("chat", "q", 4.6)])
    one.assign({"p": 1, "q": 1})
    chosen, chance = [], []
    for _ in range(1500):
        job = one.submit("chat", servers=["p", "q"])
        [task] = one.assign({"p": 1, "q": 1}, elapsed=0.0)
        chosen.append(task.server_class == "p")
        chance.append({each.server_class: each.probability for each in one.explain(job).options}["p"])
        one.cancel(job)
    assert abs(np.mean(chosen) - np.mean(chance)) < 0.065
    assert abs(np.mean(chance) - 0.5) > 0.1


def test_a_server_that_was_hardly_tried_is_drawn_more_where_one_try_would_tell_much() -> None:
    """Both times two standard errors below the other: with little noise by 0.6 of them, with much by 0.25, Eq. (63)."""
    chance = {}
    for noise in (0.1, 3.0):
        rng = np.random.default_rng(1)
        one = scheduler(reward=(0.0, 10.0), V=1000.0)
        one.observe([("chat", "p", 7.0 + noise * rng.uniform(-1.0, 1.0)) for _ in range(60)])
        one.assign({"p": 1, "q": 1})
        engine = one._engine
        assert isinstance(engine, LookAhead)
        numbers = np.array([[[0.4, 0.0], [0.0, 0.2], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]])
        decision = Decision(engine._choices(numbers, np.array([0])), 0)
        ratio = 0.04 / (0.04 + engine.learnt.value.noise)
        assert decision.spread[1] == pytest.approx(0.2 * max(0.2, ratio))
        chance[noise] = decision.probabilities()[1]
    assert chance[0.1] > 1e-4 > 1e-9 > chance[3.0]


def test_only_eligible_servers_are_options() -> None:
    one = taught()
    waiting = one.submit("chat", servers=["q"])
    assert [option.server_class for option in one.explain(waiting).options] == ["q"]
    [task] = one.assign({"p": 1, "q": 1})
    assert [option.server_class for option in one.explain(task.job).options] == ["q"]
    assert one.explain(task.job).probability == 1.0 and one.explain(task.job).second is None


def test_waiting_jobs_are_explained_with_work_conserving_too() -> None:
    one = taught(work_conserving=True)
    assert {option.server_class for option in one.explain(one.submit("chat")).options} == {"p", "q"}


def test_explanations_of_unknown_jobs_are_refused() -> None:
    one = taught()
    with pytest.raises(BadInput, match="job must be waiting or assigned; got 'no'"):
        one.explain("no")
    one.place("chat", "p", "placed")
    with pytest.raises(BadInput, match="job must have been assigned by this scheduler"):
        one.explain("placed")


def test_a_server_class_without_servers_is_no_option_of_a_waiting_job() -> None:
    """It was rated as free, with probability one. Before any server was seen, all classes are options."""
    one = scheduler()
    waiting = one.submit("chat", servers=["p", "q"])
    assert {option.server_class for option in one.explain(waiting).options} == {"p", "q"}
    one.assign({})
    task = one.submit("code", servers=["q"])
    assert [each.job for each in one.assign({"q": 1}, elapsed=0.0)] == [waiting]
    assert [option.server_class for option in one.explain(task).options] == ["q"]
    both, absent = one.submit("code"), one.submit("code", servers=["p"])
    assert [(option.server_class, option.probability) for option in one.explain(both).options] == [("q", 1.0)]
    assert one.explain(absent).options == () and one.explain(absent).second is None
