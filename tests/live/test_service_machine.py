"""The HTTP service against a plain model in memory, on SQLite and PostgreSQL, through restarts and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, Literal

from asgi import Answer, request
from databases import Postgres
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from learnt import from_log, learnt
from msgspec import structs
from tenant_rules import TenantRules
from virtual import virtual_time

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
LEASE = 30.0
SPANS = (3.0, 8.0, LEASE + 1.0)  # seconds that pass; some jobs start after 5, and some deadlines are after 5 or 10
PHASES = (Phase.explicit, Phase.generate)
"""No shrinking: a database makes an example slow, and a long one is clear enough."""


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"features": [0.5, -1.0], "tags": ["some"]},
    {"features": [2.0, 0.0], "weight": 2.0, "deadline": 10.0, "max_attempts": ATTEMPTS, "servers": ["x", "y"]},
    {"servers": ["x"], "not_before": 5.0},
    {"deadline": 5.0, "tags": ["some"]},
)
"""What jobs have of their own."""


class ServiceMachine(TenantRules):
    """Jobs, leases and rewards as dictionaries; every answer must be the one that they imply."""

    fresh: Callable[[], str]
    attempts = ATTEMPTS

    def __init__(self) -> None:
        super().__init__()
        self.runner, self.patches = asyncio.Runner(), ExitStack()
        self.clock = self.patches.enter_context(virtual_time())
        self.settings = ServiceSettings(
            database=type(self).fresh(), work_conserving=True, job_class=JOBS, server_class=SERVERS, slot=60.0, lease=LEASE,
            max_attempts=ATTEMPTS, retry_longest=0.0, pause_longest=0.0, rate=0.0, checkpoint_every=3600.0, backlog=40,
            seed=1,
        )  # fmt: skip
        self.target = self.settings.target_wait
        self.keys: dict[str, tuple[str, dict[str, Any]]] = {}
        self.finished: dict[str, dict[str, Any]] = {}
        self.rewards = 0
        self.until: dict[str, float] = {}
        self.earned: dict[str, float | None] = {}
        self.key = ""
        self.start()
        for name in "xy":
            self.register(name)
        self._submit([(name, None, units, options) for options in OPTIONS for name, units in (("a", 1), ("b", 2))])

    def start(self) -> None:
        async def begin() -> None:
            self.service = Service(self.settings, open_store(self.settings.database))
            await self.service.start()
            while not self.service.ready:  # PostgreSQL needs some time to notice that the previous leader is gone
                await asyncio.sleep(0.01)
            if not self.key:
                new = NewKey(["fleet"]), NewKey(["admin"]), NewKey(["admin"], namespace="other")
                made = [await self.service.create_key(LOCAL, one) for one in new]
                self.fleet, self.key, self.other = (one.key for one in made)

        self.runner.run(begin())
        self.app = make_app(self.service, Watcher(self.service.replica), self.settings)
        self.slot()

    def ask(self, method: str, url: str, body: Any = None, *, key: str = "") -> Answer:
        return self.runner.run(request(method, url, body, key or self.key).run(self.app))

    def slot(self) -> None:
        """Run a slot while no server asks for work: leases and deadlines that have passed are over."""

        async def run() -> None:
            self.service.slots.run_slot()
            await asyncio.sleep(0)
            await self.service.replica.write(lambda tx: None)  # behind what the slot writes

        self.runner.run(run())
        for lease in [lease for lease, until in self.until.items() if until <= self.clock.seconds]:
            if lease in self.active:
                self.lose(lease)
        self.drop_late()

    def drop_late(self) -> None:
        for id, job in self.jobs.items():
            if job["state"] == "queued" and job["deadline"] <= self.clock.seconds and self.settings.late == "drop":
                self.to(id, "expired")

    @rule(seconds=st.sampled_from(SPANS))
    def time_passes(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.slot()

    def teardown(self) -> None:
        self.learnt_is_the_replay()
        self.runner.run(self.service.stop())
        self.runner.close()
        self.patches.close()

    @rule(
        wanted=st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.sampled_from([None, None, "k1", "k2", "k3"]),
                st.integers(1, 2),
                st.sampled_from(OPTIONS),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def submit(self, wanted: list[tuple[str, str | None, int, dict[str, Any]]]) -> None:
        self._submit(wanted)

    def _submit(self, wanted: list[tuple[str, str | None, int, dict[str, Any]]]) -> None:
        bodies = [
            {"class": name, "payload": {"n": units}, "key": key, "units": units} | options
            for name, key, units, options in wanted
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
            own = {"tags": body.get("tags", []), "servers": body.get("servers", ["x", "y"])}
            times = {
                "deadline": self.clock.seconds + body.get("deadline", inf),
                "start": self.clock.seconds + body.get("not_before", 0.0),
            }
            self.jobs[ref["id"]] = new | own | times
            if body["key"] is not None:
                self.keys[str(body["key"])] = (ref["id"], body)

    def register(self, name: str) -> None:
        answer = self.ask("POST", "/v1/servers", {"class": name})
        assert answer.status == 201
        self.servers[answer.json["id"]] = name

    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        """Servers that ask get jobs that they may serve; what they held before comes to nothing."""
        busy = {server for _, server in self.active.values()}
        ids = sorted(set(self.servers) - busy) or sorted(self.servers)
        some = data.draw(st.just(ids) | st.lists(st.sampled_from(sorted(self.servers)), unique=True, min_size=1))
        for lease, (_, server) in list(self.active.items()):
            if server in some:
                self.lose(lease)
        self.drop_late()
        answer = self.ask("POST", "/v1/work", {"lease": some})
        assert answer.status == 200
        leases = answer.json["leases"]
        free = [id for id in some if self.held.get(id) is None]
        for lease in leases:
            job = self.jobs[lease["job"]["id"]]
            assert (job["state"], job["class"]) == ("queued", lease["job"]["class"])
            assert (lease["job"]["units_left"], lease["job"]["attempts"]) == (job["left"], job["attempts"])
            assert lease["server"] in free and lease["lease"] not in self.active
            assert self.servers[lease["server"]] in job["servers"] and job["start"] <= self.clock.seconds
            self.to(lease["job"]["id"], "leased")
            self.active[lease["lease"]] = (lease["job"]["id"], lease["server"])
            self.until[lease["lease"]] = self.clock.seconds + LEASE
            free.remove(lease["server"])
        idle = {self.servers[id] for id in free}
        ready = [job for job in self.jobs.values() if job["state"] == "queued" and job["start"] <= self.clock.seconds]
        assert not [job for job in ready if idle & {*job["servers"]}], "no server idles while a job waits for it"

    def lose(self, lease: str) -> None:
        """Note that a lease came to nothing."""
        id, _ = self.active.pop(lease)
        self.over.add(lease)
        self.jobs[id]["attempts"] += 1
        self.to(id, "dead" if self.jobs[id]["attempts"] >= ATTEMPTS else "queued")

    @precondition(lambda self: self.active or self.finished or self.over)
    @rule(data=st.data())
    def end_or_extend(self, data: st.DataObject) -> None:
        """One of the calls about a lease."""
        calls = [self.finish] * 3 + [self.fail, self.extend, self.finish_badly] if self.active else []
        calls += [self.finish_again] if self.finished else []
        calls += [self.finish_too_late] if self.over else []
        data.draw(st.sampled_from(calls))(data)

    def finish(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.active)))
        reward, done = data.draw(st.none() | st.floats(0.0, 1.0)), data.draw(st.none() | st.booleans())
        body = {"fence": int(lease[1:]), "reward": reward, "done": done, "result": {"r": reward}}
        answer = self.ask("POST", f"/v1/leases/{lease}/finish", body)
        id, _ = self.active.pop(lease)
        job = self.jobs[id]
        over = job["left"] == 1 if done is None else done
        job["left"] = max(job["left"] - 1, 0 if over else 1)
        self.to(id, "done" if over else "queued")
        assert (answer.status, answer.json) == (200, {"job": id, "state": job["state"], "repeated": False})
        self.slot()
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

    def finish_again(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.finished)))
        same = self.ask("POST", f"/v1/leases/{lease}/finish", self.finished[lease])
        assert same.status == 200 and same.json["repeated"]
        other = self.ask("POST", f"/v1/leases/{lease}/finish", self.finished[lease] | {"reward": 0.123})
        assert other.status == 409

    def finish_badly(self, data: st.DataObject) -> None:
        reward = data.draw(st.sampled_from([-0.5, 1.5, 1e300]))
        lease = data.draw(st.sampled_from(sorted(self.active)))
        assert self.ask("POST", f"/v1/leases/{lease}/finish", {"fence": int(lease[1:]), "reward": reward}).status == 422
        assert self.ask("POST", f"/v1/leases/{lease}/finish", {"fence": int(lease[1:]) + 1}).status == 409

    def finish_too_late(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.over)))
        assert self.ask("POST", f"/v1/leases/{lease}/finish", {"fence": int(lease[1:]), "reward": 0.5}).status == 409
        assert self.ask("POST", f"/v1/leases/{lease}/extend", {"fence": int(lease[1:])}).status == 409

    def fail(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.active)))
        id = self.active[lease][0]
        answer = self.ask("POST", f"/v1/leases/{lease}/fail", {"fence": int(lease[1:]), "error": "broke"})
        self.lose(lease)
        assert (answer.status, answer.json["state"]) == (200, self.jobs[id]["state"])
        self.slot()

    def extend(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.active)))
        assert self.ask("POST", f"/v1/leases/{lease}/extend", {"fence": int(lease[1:])}).status == 200
        self.until[lease] = self.clock.seconds + LEASE

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel_or_retry(self, data: st.DataObject) -> None:
        """One of the calls of an operator about one job or many."""
        dead = any(job["state"] == "dead" for job in self.jobs.values())
        data.draw(st.sampled_from([self.cancel, self.cancel_many, *[self.retry, self.retry_many] * 2 * dead]))(data)

    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.jobs)))
        answer = self.ask("DELETE", f"/v1/jobs/{id}")
        if self.jobs[id]["state"] not in ("queued", "leased"):
            assert answer.status == 409
            return
        assert (answer.status, answer.json["state"]) == (200, "cancelled")
        self.cancelled(id)

    def retry(self, data: st.DataObject) -> None:
        dead = sorted(id for id, job in self.jobs.items() if job["state"] == "dead")
        assert sorted(job["id"] for job in self.ask("GET", "/v1/dead").json["jobs"]) == dead
        id = data.draw(st.sampled_from(dead))
        assert self.ask("POST", f"/v1/dead/{id}/retry").status == 200
        assert self.ask("POST", f"/v1/dead/{id}/retry").status == 409
        self.retried(id)

    @rule(in_order=st.booleans(), late=st.sampled_from(["drop", "drop", "serve"]))
    def restart(self, in_order: bool, late: Literal["drop", "serve"]) -> None:
        if in_order:
            self.runner.run(self.service.stop())
        else:
            self.service.replica.ready = False
            self.runner.run(self.crash())
        self.settings = structs.replace(self.settings, late=late)
        self.until = dict.fromkeys(self.active, self.clock.seconds + LEASE)
        self.start()

    async def crash(self) -> None:
        """End without a word: nothing is saved on the way out."""
        for task in list(self.service.replica.tasks):
            task.cancel()
        await self.service.replica.store.stop()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """All that can be read is as the calls before imply."""
        self.list_servers()
        self.read_ended()
        self.settings_are_as_set()
        self.neither_sees_the_other(data)
        self.learnt_is_the_replay()
        self.explain(data.draw(st.sampled_from(sorted(self.jobs))))
        for id, job in self.jobs.items():
            found = self.ask("GET", f"/v1/jobs/{id}").json
            assert (found["state"], found["class"], found["units_left"], found["attempts"]) == (
                job["state"], job["class"], job["left"], job["attempts"],
            )  # fmt: skip
        state = self.ask("GET", "/v1/state").json
        for one in state["job_classes"]:
            states = [job["state"] for job in self.jobs.values() if job["class"] == one["name"]]
            assert (one["queued"], one["leased"]) == (states.count("queued"), states.count("leased"))

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
            phases=PHASES, max_examples=examples, stateful_step_count=50, deadline=None, suppress_health_check=checks
        ),
    )


def test_the_service_on_sqlite(tmp_path: Path) -> None:
    numbers = count()
    run(lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db", examples=25)


def test_the_service_on_postgresql(postgres: Postgres) -> None:
    run(postgres.fresh, examples=12)
