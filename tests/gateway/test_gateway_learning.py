"""What is learnt and kept: where requests go, feedback and corrections, sessions, shadow mode, restarts, the log."""

import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import numpy as np
import pytest
from gateway_stand import CODER, LARGE, SEA, SMALL, Stand, wait_for
from prometheus_client.parser import text_string_to_metric_families

from bilinq.gateway.config import Tenant, Worth
from bilinq.gateway.demo import SHARE, request
from bilinq.gateway.dispatcher import new_scheduler
from bilinq.gateway.fakes import FakeModel
from bilinq.gateway.features import KINDS
from bilinq.gateway.gateway import Gateway
from bilinq.gateway.journal import Journal
from bilinq.gateway.learnt import replay

FAIR, GOOD = FakeModel(name="fair", quality=0.5), FakeModel(name="good", quality=0.9)


def drive(stand: Stand, number: int, seed: int = 0) -> list[tuple[str, str]]:
    """Send requests of all kinds, one after the other; return kind and back end of each."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(number):
        kind = KINDS[int(rng.choice(len(SHARE), p=SHARE))]
        answer = stand.post("/v1/chat/completions", request(kind, rng))
        assert answer.status_code == 200, answer.text
        found.append((kind, answer.headers["x-bilinq-backend"]))
    return found


def judged(stand: Stand) -> None:
    """Wait until every answer is rated."""
    wait_for(lambda: stand.do(lambda gateway: all(r.reward is not None for r in gateway.records.latest(1000))))


def beliefs(gateway: Gateway) -> Any:
    gateway.dispatcher.scheduler.assign({}, 0.0)
    found = gateway.dispatcher.scheduler.beliefs()
    assert found is not None
    return found.mean.tobytes(), found.width.tobytes()


def test_it_learns_which_back_end_suits_which_kind() -> None:
    """After 300 requests the best of the last 100 get code to the coder and short prose to the small one."""
    with Stand([SMALL, CODER], worth=Worth(second=0.0, money=100.0)) as stand:
        last = Counter((("code" in kind, "tools" in kind), backend) for kind, backend in drive(stand, 300)[200:])
        wait_for(lambda: stand.get("/v1/gateway").json()["quality_from"] == {"judge": 300})  # judges run afterwards
        page = stand.get("/v1/gateway").json()
        metrics = {one.name: one for one in text_string_to_metric_families(stand.get("/metrics").text)}
    code = {name: sum(n for ((c, _), b), n in last.items() if c and b == name) for name in ("small", "coder")}
    prose = {name: last[(False, False), name] for name in ("small", "coder")}
    assert code["coder"] > 4 * code["small"] and prose["small"] > 4 * prose["coder"]
    cells = {one["kind"]: {cell["backend"]: cell["mean"] for cell in one["cells"]} for one in page["learnt"]}
    assert cells["short code"]["coder"] > cells["short code"]["small"] + 0.2
    assert cells["short prose"]["small"] > cells["short prose"]["coder"] + 0.05
    done = [s.value for s in metrics["bilinq_gateway_attempts"].samples if s.labels["state"] == "done"]
    assert sum(done) == 300


def test_without_feedback_it_learns_price_and_speed() -> None:
    """Equal by rules; one is a hundred times as expensive, one ten times as slow: the third gets nearly all."""
    models = [
        FakeModel(name="expensive", price_out=40.0), FakeModel(name="slow", first=20.0, per_token=0.0),
        FakeModel(name="right"),
    ]  # fmt: skip
    with Stand(models, judge=None, worth=Worth(second=1.0, money=100.0)) as stand:
        drive(stand, 60)
        before = dict(stand.asked)
        drive(stand, 60, seed=1)
        assert stand.asked["right"] - before["right"] >= 52
        assert stand.get("/v1/gateway").json()["quality_from"] == {"rules": 120}


def test_feedback_is_learnt_corrected_and_counted_once() -> None:
    with Stand([FAIR, GOOD], judge=None, worth=Worth(second=0.0, money=0.0)) as stand:
        answer = stand.ask("fair")
        before = stand.do(beliefs)
        assert stand.feedback(answer, thumbs="down").json()["quality"] == 0.0
        down = stand.do(beliefs)
        assert stand.feedback(answer, score=0.0).json()["reward"] == 0.0
        assert stand.do(beliefs) == down != before, "the same again changes nothing"
        assert stand.feedback(answer, score=0.75, comment="better than I thought").json()["reward"] == 0.75
        assert stand.do(beliefs) != down
        why = stand.get(f"/v1/requests/{answer.id}/decision").json()
        assert why["worth"]["quality_from"] == "feedback" and why["worth"]["reward"] == 0.75
        for body, status in (
            ({"id": answer.id}, 400), ({"id": answer.id, "score": 2}, 400), ({"id": answer.id, "thumbs": "sideways"}, 400),
            ({"id": answer.id, "score": 1, "thumbs": "up"}, 400), ({"id": "chatcmpl-0", "score": 1}, 404), ({"id": 7}, 400),
        ):  # fmt: skip
            assert stand.post("/v1/feedback", body).status_code == status, body


def test_some_feedback_moves_requests_to_the_better_back_end() -> None:
    """One answer in three gets feedback: 0.5 for one back end and 0.9 for the other, which then gets most requests."""
    with Stand([FAIR, GOOD], judge=None, worth=Worth(second=0.0, money=0.0)) as stand:
        for k in range(120):
            answer = stand.ask()
            if k % 3 == 0:
                stand.feedback(answer, score=0.9 if answer.model == "good" else 0.5)
        before = dict(stand.asked)
        for _ in range(40):
            stand.ask()
        assert stand.asked["good"] - before["good"] >= 30


def test_why_a_request_went_where_it_did() -> None:
    with Stand([FAIR, GOOD]) as stand:
        answer = stand.ask(stream=False)
        judged(stand)
        why = stand.get(f"/v1/requests/{answer.id}/decision").json()
    assert why["backend"] == answer.model and why["state"] == "done" and why["cost"] > 0.0
    assert {one["backend"] for one in why["options"]} == {"fair", "good"}
    assert [one["backend"] for one in why["options"] if one["chosen"]] == [answer.model]
    assert sum(one["probability"] for one in why["options"]) == pytest.approx(1.0)
    parts = why["worth"]
    total = parts["quality"] - sum(parts["minus"].values())
    assert parts["reward"] == pytest.approx(total) and parts["quality_from"] == "judge"


def test_a_restart_continues_with_what_was_learnt_and_spent(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'log.db'}"
    with Stand([SMALL, CODER], database=database) as stand:
        drive(stand, 80)
        judged(stand)
        old = stand.ask("small")
        judged(stand)
        learnt, spent = stand.do(beliefs), stand.get("/v1/gateway").json()["tenants"][0]["spent"]
    with Stand([SMALL, CODER], database=database) as stand:
        assert stand.do(beliefs) == learnt
        assert stand.get("/v1/gateway").json()["tenants"][0]["spent"] == pytest.approx(spent)
        assert stand.feedback(old, score=0.1).json()["quality"] == 0.1, "feedback to an answer from before the restart"
        corrected = stand.do(beliefs)
        assert corrected != learnt
        drive(stand, 20, seed=1)
        judged(stand)
        learnt = stand.do(beliefs)
    with Stand([SMALL, CODER, LARGE], database=database) as stand:  # one more back end
        assert stand.ask("large").choices and stand.ask("small").choices


def test_learnt_state_equals_a_replay_of_the_log(tmp_path: Path) -> None:
    """Bit for bit: with failures, feedback, corrections and a restart in between."""
    database = f"sqlite:///{tmp_path / 'log.db'}"
    for seed in range(2):
        with Stand([SMALL, CODER], database=database, judge=None) as stand:
            for k in range(60):
                stand.fakes["small"].trouble = "fail" if k % 10 == 7 else None
                answer = stand.ask()
                if k % 3 == 0:
                    stand.feedback(answer, score=k / 60.0)
                if k % 9 == 0:
                    stand.feedback(answer, score=1.0 - k / 60.0)
            drive(stand, 10, seed)
            learnt, config = stand.do(beliefs), stand.gateway.config
    journal = Journal(database)
    scheduler = new_scheduler(config)
    replay(scheduler, journal)
    found = scheduler.beliefs()
    assert found is not None and (found.mean.tobytes(), found.width.tobytes()) == learnt
    assert journal.seq > 140


def test_each_back_end_is_tried_by_each_kind_of_request() -> None:
    """Requests that come one at a time, when nothing is known: the first four of a kind go to four back ends."""
    prompts = ("Tell me about the sea.", "Fix: ```python\nx = 1\n```")
    with Stand() as stand:
        for prompt in prompts:
            answers = [stand.ask(messages=[{"role": "user", "content": prompt}]) for _ in stand.fakes]
            assert {one.model for one in answers} == set(stand.fakes)


def test_a_new_back_end_is_tried_by_the_next_requests(tmp_path: Path) -> None:
    """Of the next 16 requests of a kind it gets at least the 8 by which it is tried; without it none is preferred."""
    database = f"sqlite:///{tmp_path / 'log.db'}"
    with Stand([FAIR], database=database) as stand:
        for _ in range(110):
            stand.ask()
    with Stand([FAIR, GOOD], database=database) as stand:
        for _ in range(16):
            stand.ask()
        assert stand.asked["good"] >= 8


def test_only_one_gateway_uses_a_log(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'log.db'}"
    with Stand([SMALL], database=database) as first:
        second = Stand([SMALL], database=database)
        with pytest.raises(ValueError, match="no other gateway uses"):
            second.__enter__()
        assert first.ask().choices


def test_a_session_stays_while_that_is_worth_it() -> None:
    """Two equal back ends of many slots: turns of a conversation stay, and cached tokens are cheaper."""
    models = [FakeModel(name=name, caches=True, quality=0.7, price_in=5.0) for name in ("left", "right")]
    changes = {name: {"price_cached": 0.5} for name in ("left", "right")}
    with Stand(models, changes=changes, worth=Worth(money=100.0, second=0.0)) as stand:
        moves = turns = 0
        for conversation in range(8):
            said: list[Any] = [
                {"role": "user", "content": f"Conversation {conversation} begins. " + "Hear me out. " * 60}
            ]
            places = []
            for _ in range(5):
                answer = stand.ask(messages=said)
                places.append(answer.model)
                said = [
                    *said,
                    {"role": "assistant", "content": "Go on."},
                    {"role": "user", "content": "And so on. " * 10},
                ]
            turns += 4
            moves += sum(a != b for a, b in pairwise(places))
        assert moves <= turns / 4, "by chance it would be a half"
        assert stand.do(lambda gateway: gateway.sessions.cached.get("left", "")) > 0.3


def test_a_named_session_costs_what_was_stated_to_move() -> None:
    with Stand([FAIR, GOOD], judge=None, worth=Worth(switch=0.5, second=0.0, money=0.0)) as stand:
        first = stand.ask(extra_headers={"x-bilinq-session": "a"}).model
        others = [stand.ask(extra_headers={"x-bilinq-session": "a"}).model for _ in range(10)]
        assert others == [first] * 10


def test_shadow_mode_reports_and_does_not_route() -> None:
    """Least busy routing, one request at a time, goes to the first of equals; the scheduler would go to the better one."""
    with Stand([FAIR, GOOD], shadow=True, worth=Worth(second=0.0, money=0.0)) as stand:
        for _ in range(10):
            stand.ask("good")  # a wish is still followed
        for _ in range(40):
            stand.ask()
        judged(stand)
        stand.ask()
        assert stand.asked == {"fair": 41, "good": 10}
        shadow = stand.get("/v1/gateway").json()["shadow"]
        assert shadow["requests"] == 51 and shadow["differ"] >= 15
        assert 0.05 < shadow["gain"] < 0.4 and shadow["error"] > 0.0


def test_a_judge_that_fails_or_does_not_know_leaves_it_to_the_rules() -> None:
    said: list[Any] = [0.25, None, 7.0, ValueError("no opinion")]

    def judge(body: Any, answer: Any) -> Any:
        found = said.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    with Stand([FAIR], judge=judge) as stand:
        for _ in range(4):
            stand.ask()
            judged(stand)
        sources = stand.get("/v1/gateway").json()["quality_from"]
    assert sources == {"judge": 1, "rules": 1, "filled": 2} or sources == {"judge": 1, "filled": 3}


def test_an_embedding_function_adds_features() -> None:
    with Stand([FAIR, GOOD], embedding="gateway_functions:embed") as stand:
        drive(stand, 10)
        features = stand.do(lambda gateway: [one.features for one in gateway.records.latest(10)])
    assert {len(one or []) for one in features} == {32 + 48}
    with Stand([FAIR, GOOD], embedding="gateway_functions:broken") as stand:
        drive(stand, 3)
        assert stand.do(lambda gateway: gateway.records.latest(1)[0].features) is None


def test_a_price_of_waiting_takes_the_place_of_the_target(tmp_path: Path) -> None:
    """Four requests at once for a good and a fair back end with one place each: cheap waiting lets all take the good one.

    An answer takes 0.05 s, so the last of four waits for 0.15 s; the good one is worth 0.4 more. The price may change with
    a restart.
    """
    models = [FakeModel(name=name, quality=q, first=5.0, per_token=0.0, concurrency=1)
              for name, q in (("fair", 0.5), ("good", 0.9))]  # fmt: skip
    taken: dict[float, int] = {}
    for price in (1e-4, 20.0):
        worth = Worth(second=0.0, money=0.0, wait=price)
        with Stand(models, worth=worth, database=f"sqlite:///{tmp_path}/log.db") as stand:
            for name in ("fair", "good") * (12 if not taken else 0):
                stand.ask(name)
            judged(stand)
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(lambda _, ask=stand.ask: ask().model, range(4)))
            taken[price] = found.count("good")
            assert stand.get("/v1/gateway").json()["waits"]["note"] == f"a second costs {price:g}"
    assert taken[1e-4] == 4 and 1 <= taken[20.0] <= 3


def test_the_log_has_each_part_of_a_reward(tmp_path: Path) -> None:
    with Stand([FAIR], database=f"sqlite:///{tmp_path / 'log.db'}") as stand:
        answer = stand.ask(messages=SEA)
        judged(stand)
    with sqlite3.connect(tmp_path / "log.db") as db:
        [(state, cost, detail)] = db.execute("SELECT state, cost, detail FROM gateway_request").fetchall()
    db.close()
    kept = msgspec.msgpack.decode(detail)
    assert state == "done" and cost == pytest.approx(kept["parts"]["price"])
    assert kept["parts"]["quality_from"] == "judge" and kept["reward"] == kept["parts"]["reward"]
    prompt, made, _ = kept["tokens"]
    assert (prompt, made) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)


def test_longer_requests_are_expected_to_take_longer() -> None:
    """Prompts of 4 or 400 words, answers of 10 or 200 tokens: the length of the prompt says how long the answer takes."""
    with Stand([FAIR], speed=20.0) as stand:

        def expected(words: int, tokens: int) -> float:
            messages = [{"role": "user", "content": "word " * words}]
            answer = stand.ask(messages=messages, extra_body={"fake": {"fair": {"tokens": tokens}}})
            [option] = stand.get(f"/v1/requests/{answer.id}/decision").json()["options"]
            return float(option["duration"])

        for _ in range(25):
            short, long = expected(4, 10), expected(400, 200)
    per_token = FAIR.per_token / 20.0
    assert long - short > 0.5 * 190 * per_token and long > 1.5 * short


def test_waits_of_tenants_are_in_proportion_to_one_over_their_weights() -> None:
    """Two tenants with weights 1 and 4, each always with ten requests at one back end of two places."""
    tenants = tuple(
        Tenant(name=name, key_sha256=sha256(name.encode()).hexdigest(), weight=weight, scopes=("admin",))
        for name, weight in (("light", 1.0), ("heavy", 4.0))
    )
    model = FakeModel(name="one", first=1.0, per_token=0.0, concurrency=2)
    ended = Event()

    def ask_heavy() -> None:
        for _ in range(10):
            stand.ask(key="heavy")

    def ask_light() -> None:
        while not ended.is_set():
            stand.ask(key="light")

    with Stand([model], speed=20.0, tenant=tenants) as stand, ThreadPoolExecutor(20) as pool:
        light, heavy = ([pool.submit(ask) for _ in range(10)] for ask in (ask_light, ask_heavy))
        for one in heavy:
            one.result()
        shown = stand.get("/v1/gateway", Authorization="Bearer heavy").json()["tenants"]
        ended.set()
        for one in light:
            one.result()
    waits = {one["name"]: one["wait"] for one in shown}
    assert 2.5 < waits["light"] / waits["heavy"] < 6.0, waits
