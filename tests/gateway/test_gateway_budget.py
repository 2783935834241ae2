"""Budgets: never exceeded, spread over the day, kept across restarts and kills, each request charged once."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import openai
import pytest
from gateway_stand import SEA, Stand, wait_for

from bilinq.gateway.budget import DAY, Budgets, day_of
from bilinq.gateway.config import Tenant, Worth
from bilinq.gateway.fakes import FakeModel

CHEAP = FakeModel(name="cheap", price_in=1.0, price_out=1.0, tokens=50.0, quality=0.6)
GOOD = FakeModel(name="good", price_in=20.0, price_out=20.0, tokens=50.0, quality=0.9)
KEY = "key of a"
COST = 60e-6  # about 10 tokens of prompt and 50 of an answer, at 1 for a million


def tenant(budget: float | None) -> tuple[Tenant, ...]:
    return (Tenant(name="a", key_sha256=sha256(KEY.encode()).hexdigest(), budget=budget, scopes=("admin",)),)


def at(hour: float) -> Callable[[], float]:
    return lambda: 20_000 * DAY + 3600.0 * hour


def test_money_counts_more_the_further_spending_is_ahead_of_the_day() -> None:
    """A fifth of the budget at a quarter of the day is as planned; 5 % ahead doubles, 10 % ahead quadruples."""
    for spent, factor in ((0.2, 1.0), (0.25, 1.0), (0.30, 2.0), (0.35, 4.0)):
        budgets = Budgets({"a": 10.0}, at(6.0))
        budgets.load("a", day_of(at(6.0)()), 10.0 * spent)
        assert budgets.factor("a") == pytest.approx(factor)
    assert Budgets({"a": None}, at(6.0)).factor("a") == 1.0


def test_a_reservation_is_replaced_by_the_cost_and_a_new_day_begins_at_zero() -> None:
    now = [20_000 * DAY]
    budgets = Budgets({"a": 10.0}, lambda: now[0])
    day = budgets.reserve("a", 6.0)
    assert day is not None and budgets.reserve("a", 6.0) is None and budgets.left("a") == 4.0
    budgets.settle("a", day, 6.0, 1.0)
    assert budgets.left("a") == 9.0
    old = budgets.reserve("a", 9.0)
    now[0] += DAY
    assert old is not None and budgets.left("a") == 10.0
    budgets.settle("a", old, 9.0, 9.0)
    assert budgets.left("a") == 10.0, "what began yesterday counts yesterday"


def test_a_budget_is_never_exceeded_by_many_at_once() -> None:
    budget = 30 * COST
    changes = {"cheap": {"max_output": 200}}
    with Stand([CHEAP], tenant=tenant(budget), changes=changes) as stand:

        def ask(k: int) -> int:
            body = {"messages": SEA, "stream": k % 2 == 0, "max_tokens": 100 if k % 3 else None}
            return stand.post("/v1/chat/completions", body, Authorization=f"Bearer {KEY}").status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(ask, range(80)))
        assert set(statuses) == {200, 429}
        with pytest.raises(openai.RateLimitError) as caught:
            for _ in range(80):  # what was reserved and not spent may leave room for a few
                stand.ask(key=KEY)
        assert caught.value.code == "insufficient_quota" and "budget of tenant 'a'" in caught.value.message
        spend = stand.do(lambda gateway: gateway.budgets.of("a"))
    assert 0.5 * budget < spend.spent <= 1.005 * budget and spend.reserved == pytest.approx(0.0)


def test_a_tenant_ahead_of_the_day_moves_to_the_cheaper_back_end() -> None:
    """Without a budget the better back end is worth its price; when the budget runs short, it is not."""
    shares = {}
    for name, budget in (("none", None), ("short", 2000 * COST)):
        with Stand([CHEAP, GOOD], tenant=tenant(budget), worth=Worth(second=0.0, money=20.0)) as stand:
            for _ in range(60):
                stand.ask(key=KEY, max_tokens=80)
            if budget is not None:
                stand.do(lambda gateway: setattr(gateway.budgets.of("a"), "spent", 1500 * COST))
                stand.do(lambda gateway: setattr(gateway.budgets, "_now", at(1.0)))
                stand.do(lambda gateway: gateway.budgets.load("a", day_of(at(1.0)()), 1500 * COST))
            before = dict(stand.asked)
            for _ in range(20):
                stand.ask(key=KEY, max_tokens=80)
            shares[name] = stand.asked["good"] - before["good"]
    assert shares["none"] >= 12 and shares["short"] <= 2


def test_spend_survives_restarts_and_a_request_that_never_ended_stays_reserved(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'log.db'}"
    with Stand([CHEAP], tenant=tenant(1.0), database=database) as stand:
        for _ in range(10):
            stand.ask(key=KEY)
        spent = stand.do(lambda gateway: gateway.budgets.of("a").spent)
    with sqlite3.connect(tmp_path / "log.db") as db:
        total, rows = db.execute("SELECT SUM(cost), COUNT(*) FROM gateway_request").fetchone()
        assert total == pytest.approx(spent) and rows == 10
        db.execute("UPDATE gateway_request SET state = 'started', cost = 0.25 WHERE rowid = 1")
    db.close()
    with Stand([CHEAP], tenant=tenant(1.0), database=database) as stand:
        again = stand.do(lambda gateway: gateway.budgets.of("a").spent)
    assert again == pytest.approx(0.25 + 0.9 * spent, rel=0.05)


def test_a_failed_attempt_costs_nothing_and_a_broken_stream_what_was_made(tmp_path: Path) -> None:
    changes: dict[str, dict[str, Any]] = {"cheap": {"first_timeout": 1.0}}
    with Stand([CHEAP], tenant=tenant(1.0), changes=changes) as stand:
        stand.fakes["cheap"].trouble = "fail"
        with pytest.raises(openai.InternalServerError):
            stand.ask(key=KEY)
        assert stand.do(lambda gateway: gateway.budgets.of("a").spent) == 0.0
        stand.fakes["cheap"].trouble = "break"
        with pytest.raises(openai.APIError):
            list(stand.ask(key=KEY, stream=True))
        wait_for(lambda: stand.do(lambda gateway: gateway.budgets.of("a").reserved) == 0.0)
        assert 0.0 < stand.do(lambda gateway: gateway.budgets.of("a").spent) < COST
