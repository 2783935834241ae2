"""The HTTP service against a plain model in memory, on SQLite and PostgreSQL, through restarts and crashes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from asgi import Answer, request
from databases import Postgres
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from learnt import from_log, learnt
from operator_rules import OperatorRules

from bilinq.live.http.app import make_app
from bilinq.live.keys import LOCAL
from bilinq.live.service import Service
from bilinq.live.settings import ServiceSettings
from bilinq.live.store import open_store
from bilinq.live.store.job_tables import observations_since
from bilinq.live.watch import Watcher
from bilinq.live.wire.access import NewKey
from bilinq.live.wire.messages import JobClassInfo, ServerClassInfo

pytest_plugins = ["databases"]

JOBS = (JobClassInfo("a", [1.0, 0.0]), JobClassInfo("b", [0.6, 0.8], weight=2.0))
SERVERS = (ServerClassInfo("x", [1.0, 0.1]), ServerClassInfo("y", [0.2, 1.0]))
ATTEMPTS = 2
PHASES = (Phase.explicit, Phase.generate)
"""No shrinking: a database makes an example slow, and a long one is clear enough."""


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"features": [0.5, -1.0], "tags": ["some"]},
    {"features": [2.0, 0.0], "weight": 2.0, "deadline": 1e6, "max_attempts": ATTEMPTS, "servers": ["x", "y"]},
)
"""What jobs have of their own, by their class and the number of their units."""


class ServiceMachine(OperatorRules):
    """Jobs, leases and rewards as dictionaries; every answer must be the one that they imply."""

    fresh: Callable[[], str]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.settings = ServiceSettings(
            database=type(self).fresh(), work_conserving=True, job_class=JOBS, server_class=SERVERS, slot=60.0,
            max_attempts=ATTEMPTS, retry_longest=0.0, pause_longest=0.0, rate=0.0, checkpoint_every=3600.0, backlog=40,
            seed=1,
        )  # fmt: skip
        self.target = self.settings.target_wait
        self.keys: dict[str, tuple[str, dict[str, Any]]] = {}
        self.finished: dict[str, dict[str, Any]] = {}
        self.rewards = 0
        self.earned: dict[str, float | None] = {}
        self.key = ""
        self.start()

    def start(self) -> None:
        async def begin() -> None:
            self.service = Service(self.settings, open_store(self.settings.database))
            await self.service.start()
            while not self.service.ready:  # PostgreSQL needs some time to notice that the previous leader is gone
                await asyncio.sleep(0.01)
            if not self.key:
                made = await self.service.create_key(LOCAL, NewKey(["fleet"]))
                self.key = made.key

        self.runner.run(begin())
        self.app = make_app(self.service, Watcher(self.service.replica), self.settings)

    def ask(self, method: str, url: str, body: Any = None) -> Answer:
        return self.runner.run(request(method, url, body, self.key).run(self.app))

    def teardown(self) -> None:
        self.learnt_is_the_replay()
        self.runner.run(self.service.stop())
        self.runner.close()

    @rule(
        wanted=st.lists(
            st.tuples(st.sampled_from("ab"), st.sampled_from([None, None, "k1", "k2", "k3"]), st.integers(1, 2)),
            min_size=1,
            max_size=4,
        )
    )
    def submit(self, wanted: list[tuple[str, str | None, int]]) -> None:
        bodies = [
            {"class": name, "payload": {"n": units}, "key": key, "units": units} | OPTIONS[(units + (name == "b")) % 3]
            for name, key, units in wanted
        ]
        known, clash = dict(self.keys), False
        for body in bodies:
            if body["key"] is not None:
                clash |= known.setdefault(str(body["key"]), ("", body))[1] != body
        queued = [job["class"] for job in self.jobs.values() if job["state"] == "queued"]
        full = any(queued.count(name) + sum(w[0] == name for w in wanted) > 40 for name in "ab")
        answer = self.ask("POST", "/v1/jobs", {"jobs": bodies})
        assert answer.status == (429 if full else 409 if clash else 201), answer.body
        if answer.status != 201:
            return
        for body, ref in zip(bodies, answer.json["jobs"], strict=True):
            if body["key"] is not None and str(body["key"]) in self.keys:
                assert ref["id"] == self.keys[str(body["key"])][0]
                continue
            assert ref["id"] not in self.jobs
            new = {"class": body["class"], "state": "queued", "left": body["units"], "attempts": 0}
            self.jobs[ref["id"]] = new | {"tags": body.get("tags", [])}
            if body["key"] is not None:
                self.keys[str(body["key"])] = (ref["id"], body)

    @rule(name=st.sampled_from("xy"))
    def register(self, name: str) -> None:
        answer = self.ask("POST", "/v1/servers", {"class": name})
        assert answer.status == 201
        self.servers[answer.json["id"]] = name

    @precondition(lambda self: self.servers)
    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(sorted(self.servers)), unique=True, min_size=1))
        for lease, (_, server) in list(self.active.items()):
            if server in some:
                self.lose(lease)
        queued = sum(job["state"] == "queued" for job in self.jobs.values())
        answer = self.ask("POST", "/v1/work", {"lease": some})
        assert answer.status == 200
        leases = answer.json["leases"]
        free = [id for id in some if self.held.get(id) is None]
        assert len(leases) == min(queued, len(free))
        for lease in leases:
            job = self.jobs[lease["job"]["id"]]
            assert (job["state"], job["class"]) == ("queued", lease["job"]["class"])
            assert (lease["job"]["units_left"], lease["job"]["attempts"]) == (job["left"], job["attempts"])
            assert lease["server"] in free and lease["lease"] not in self.active
            job["state"] = "leased"
            self.active[lease["lease"]] = (lease["job"]["id"], lease["server"])

    def lose(self, lease: str) -> None:
        """Note that a lease came to nothing."""
        job = self.jobs[self.active.pop(lease)[0]]
        self.over.add(lease)
        job["attempts"] += 1
        job["state"] = "dead" if job["attempts"] >= ATTEMPTS else "queued"

    @precondition(lambda self: self.active)
    @rule(data=st.data(), reward=st.none() | st.floats(0.0, 1.0), done=st.none() | st.booleans())
    def finish(self, data: st.DataObject, reward: float | None, done: bool | None) -> None:
        lease = data.draw(st.sampled_from(sorted(self.active)))
        body = {"fence": int(lease[1:]), "reward": reward, "done": done, "result": {"r": reward}}
        answer = self.ask("POST", f"/v1/leases/{lease}/finish", body)
        id, _ = self.active.pop(lease)
        job = self.jobs[id]
        over = job["left"] == 1 if done is None else done
        job["left"] = max(job["left"] - 1, 0 if over else 1)
        job["state"] = "done" if over else "queued"
        assert (answer.status, answer.json) == (200, {"job": id, "state": job["state"], "repeated": False})
        self.finished[lease] = body
        self.rewards += reward is not None
        self.earned[id] = reward

    @precondition(lambda self: self.earned)
    @rule(data=st.data(), reward=st.sampled_from([0.0, 0.25, 1.0]))
    def reward_later(self, data: st.DataObject, reward: float) -> None:
        """The first reward of the last service counts, another corrects it, and the same again changes nothing."""
        id = data.draw(st.sampled_from(sorted(self.earned)))
        before = self.earned[id]
        answer = self.ask("POST", f"/v1/jobs/{id}/reward", {"reward": reward})
        repeated, corrected = before == reward, before not in (None, reward)
        assert (answer.status, answer.json["repeated"], answer.json["corrected"]) == (200, repeated, corrected)
        self.rewards += before is None
        self.earned[id] = reward
        assert self.ask("POST", f"/v1/jobs/{id}/reward", {"reward": reward}).json["repeated"]
        if self.jobs[id]["state"] == "done":
            assert self.ask("GET", f"/v1/jobs/{id}").json["reward"] == reward
        awaited = sum(self.earned.get(one) is None for one, job in self.jobs.items() if job["state"] == "done")
        assert self.ask("GET", "/v1/state").json["awaited"] == awaited

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def finish_again(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.finished)))
        same = self.ask("POST", f"/v1/leases/{lease}/finish", self.finished[lease])
        assert same.status == 200 and same.json["repeated"]
        other = self.ask("POST", f"/v1/leases/{lease}/finish", self.finished[lease] | {"reward": 0.123})
        assert other.status == 409

    @precondition(lambda self: self.active)
    @rule(data=st.data(), reward=st.sampled_from([-0.5, 1.5, 1e300]))
    def finish_badly(self, data: st.DataObject, reward: float) -> None:
        lease = data.draw(st.sampled_from(sorted(self.active)))
        assert self.ask("POST", f"/v1/leases/{lease}/finish", {"fence": int(lease[1:]), "reward": reward}).status == 422
        assert self.ask("POST", f"/v1/leases/{lease}/finish", {"fence": int(lease[1:]) + 1}).status == 409

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def finish_too_late(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.over)))
        assert self.ask("POST", f"/v1/leases/{lease}/finish", {"fence": int(lease[1:]), "reward": 0.5}).status == 409
        assert self.ask("POST", f"/v1/leases/{lease}/extend", {"fence": int(lease[1:])}).status == 409

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.active)))
        id = self.active[lease][0]
        answer = self.ask("POST", f"/v1/leases/{lease}/fail", {"fence": int(lease[1:]), "error": "broke"})
        self.lose(lease)
        assert (answer.status, answer.json["state"]) == (200, self.jobs[id]["state"])

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def extend_or_let_expire(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.active)))
        assert self.ask("POST", f"/v1/leases/{lease}/extend", {"fence": int(lease[1:])}).status == 200
        memory = self.service.replica.memory
        memory.extend(memory.leases[int(lease[1:])], time.monotonic() - 1.0)

        async def slot() -> None:
            self.service.slots.run_slot()
            await asyncio.sleep(0)
            await self.service.replica.write(lambda tx: None)  # behind what the slot writes

        self.runner.run(slot())
        self.lose(lease)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.jobs)))
        answer = self.ask("DELETE", f"/v1/jobs/{id}")
        if self.jobs[id]["state"] not in ("queued", "leased"):
            assert answer.status == 409
            return
        assert (answer.status, answer.json["state"]) == (200, "cancelled")
        self.cancelled(id)

    @precondition(lambda self: any(job["state"] == "dead" for job in self.jobs.values()))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        dead = sorted(id for id, job in self.jobs.items() if job["state"] == "dead")
        assert sorted(job["id"] for job in self.ask("GET", "/v1/dead").json["jobs"]) == dead
        id = data.draw(st.sampled_from(dead))
        assert self.ask("POST", f"/v1/dead/{id}/retry").status == 200
        assert self.ask("POST", f"/v1/dead/{id}/retry").status == 409
        self.jobs[id] |= {"state": "queued", "attempts": 0}

    @rule(in_order=st.booleans())
    def restart(self, in_order: bool) -> None:
        if in_order:
            self.runner.run(self.service.stop())
        else:
            self.service.replica.ready = False
            self.runner.run(self.crash())
        self.start()

    async def crash(self) -> None:
        """End without a word: nothing is saved on the way out."""
        for task in list(self.service.replica.tasks):
            task.cancel()
        await self.service.replica.store.stop()

    @precondition(lambda self: self.jobs)
    @rule()
    def look(self) -> None:
        for id, job in self.jobs.items():
            found = self.ask("GET", f"/v1/jobs/{id}").json
            assert (found["state"], found["class"], found["units_left"], found["attempts"]) == (
                job["state"], job["class"], job["left"], job["attempts"],
            )  # fmt: skip
        state = self.ask("GET", "/v1/state").json
        for one in state["job_classes"]:
            states = [job["state"] for job in self.jobs.values() if job["class"] == one["name"]]
            assert (one["queued"], one["leased"]) == (states.count("queued"), states.count("leased"))

    @rule()
    def learnt_is_the_replay(self) -> None:
        """Every reward counts once: what is learnt equals what a new scheduler learns from the log, bit for bit."""

        async def compare() -> None:
            replica = self.service.replica
            log = await replica.store.write(lambda tx: observations_since(tx, 0))
            ends = [row for row in log if row.revision == 0]
            assert len(ends) == len({row.lease for row in ends})
            assert sum(row.value is not None and row.before is None for row in log) == self.rewards
            wanted = await replica.store.write(lambda tx: from_log(tx, replica.settings))
            assert learnt(replica.memory.scheduler) == wanted

        self.runner.run(compare())


def run(fresh: Callable[[], str], examples: int) -> None:
    machine = type("Machine", (ServiceMachine,), {"fresh": staticmethod(fresh)})
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine,
        settings=settings(
            phases=PHASES, max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=checks
        ),
    )


def test_the_service_on_sqlite(tmp_path: Path) -> None:
    numbers = count()
    run(lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db", examples=25)


def test_the_service_on_postgresql(postgres: Postgres) -> None:
    run(postgres.fresh, examples=12)
