"""Rules of the state machine test for those who operate the service: bulk calls, held servers, namespaces, settings."""

from __future__ import annotations

import json
from math import inf
from typing import Any
from urllib.parse import urlencode

from asgi import Answer
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from virtual import Clock

from bilinq.client.events import parse

ENDED = ("done", "dead", "cancelled", "expired")
HELD = {"drain": "draining", "quarantine": "quarantined", "release": None}
FILTERS: tuple[dict[str, str], ...] = (
    {"tag": "some"},
    {"class": "a", "state": "queued"},
    {"state": "leased"},
    {"class": "b", "tag": "some"},
    {},
)


class OperatorRules(RuleBasedStateMachine):
    """Calls that change many jobs, servers, or settings, with what they must return.

    `fleet` is a key for what all namespaces share; other calls are those of an admin of namespace default.
    """

    fleet: str
    clock: Clock

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, dict[str, Any]] = {}
        self.servers: dict[str, str] = {}
        self.active: dict[str, tuple[str, str]] = {}
        self.over: set[str] = set()
        self.held: dict[str, str | None] = {}
        self.namespace: dict[str, Any] = {"weight": 1.0, "backlog": None}
        self.target: float | None = None
        self.undoable: list[float | None] = []
        self.unread: dict[str, str] = {}
        self.position = "e0"

    def ask(self, method: str, url: str, body: Any = None, *, key: str = "") -> Answer:
        raise NotImplementedError

    def to(self, id: str, state: str) -> None:
        """Note the new state of a job; who reads the ends of jobs gets the last one of each."""
        self.jobs[id]["state"] = state
        self.unread.pop(id, None)
        if state in ENDED:
            self.unread[id] = state

    def cancelled(self, id: str) -> None:
        """Note that a job was cancelled; its lease is over."""
        self.to(id, "cancelled")
        for lease, (job, _) in list(self.active.items()):
            if job == id:
                del self.active[lease]
                self.over.add(lease)

    def cancel_many(self, data: st.DataObject) -> None:
        """All that match and have not ended are cancelled."""
        wanted = data.draw(st.sampled_from(FILTERS))
        some = [id for id in self._matching(wanted) if self.jobs[id]["state"] in ("queued", "leased")]
        self._change_many("cancel", wanted, len(some))
        for id in some if wanted else ():
            self.cancelled(id)
        self._lists("cancelled")

    def retry_many(self, data: st.DataObject) -> None:
        """All dead ones that match are queued, with all their attempts."""
        wanted = data.draw(st.sampled_from([{"state": "dead"}, {"tag": "some"}, {"class": "a"}, {}]))
        some = [id for id in self._matching(wanted) if self.jobs[id]["state"] == "dead"]
        self._change_many("retry", wanted, len(some))
        for id in some if wanted else ():
            self.retried(id)
        self._lists("dead")

    def retried(self, id: str) -> None:
        """Note that a dead job waits again, with all its attempts and without a deadline."""
        self.to(id, "queued")
        self.jobs[id] |= {"attempts": 0, "deadline": inf}

    def read_ended(self) -> None:
        """A reader that goes on from its position gets each job that has ended since, once and with its last end."""
        answer = self.ask("GET", f"/v1/events?kind=jobs&seconds=0&after={self.position}")
        assert answer.status == 200, answer.body
        events = list(parse(answer.body.decode().splitlines()))
        found = [(one["id"], one["state"]) for one in (json.loads(one.data) for one in events if one.event == "job")]
        assert len(found) == len(self.unread) and dict(found) == self.unread
        self.unread, self.position = {}, events[-1].id or self.position

    def _matching(self, wanted: dict[str, str]) -> list[str]:
        return [
            id
            for id, job in self.jobs.items()
            if wanted.get("state") in (None, job["state"])
            and wanted.get("class") in (None, job["class"])
            and wanted.get("tag") in (None, *job["tags"])
        ]

    def _change_many(self, what: str, wanted: dict[str, str], number: int) -> None:
        answer = self.ask("POST", f"/v1/jobs/{what}?{urlencode(wanted)}")
        assert answer.status == (200 if wanted else 422), answer.body
        assert not wanted or answer.json == {"changed": number, "after": None}

    def _lists(self, state: str) -> None:
        found = self.ask("GET", f"/v1/jobs?state={state}&limit=1000").json["jobs"]
        assert {job["id"] for job in found} == {id for id, job in self.jobs.items() if job["state"] == state}

    @precondition(lambda self: self.servers)
    @rule(data=st.data(), how=st.sampled_from(sorted(HELD)))
    def hold(self, data: st.DataObject, how: str) -> None:
        """A server that is held keeps its job and gets no other."""
        id = data.draw(st.sampled_from(sorted(self.servers)))
        answer = self.ask("POST", f"/v1/servers/{id}/{how}")
        assert (answer.status, answer.json["held"]) == (200, HELD[how])
        self.held[id] = HELD[how]

    def list_servers(self) -> None:
        found = self.ask("GET", "/v1/servers").json
        assert {one["id"]: one["held"] for one in found} == {id: self.held.get(id) for id in self.servers}

    @rule(
        weight=st.sampled_from([0.5, 1.0, 2.0]),
        backlog=st.sampled_from([None, 1000]),
        wait=st.sampled_from([None, 0.5, 1.0, 30.0]),
    )
    def change_settings(self, weight: float, backlog: int | None, wait: float | None) -> None:
        """What is set is so after a restart, too; without a `wait` the last change of the policy is undone."""
        self.namespace = {"weight": weight, "backlog": backlog}
        assert self.ask("PUT", "/v1/namespaces/default", self.namespace, key=self.fleet).status == 200
        if wait is None:
            self._undo()
            return
        answer = self.ask("PATCH", "/v1/settings", {"target_wait": wait}, key=self.fleet)
        assert (answer.status, answer.json["target_wait"]) == (200, wait)
        if wait != self.target:
            self.undoable.append(self.target)
        self.target = wait

    def _undo(self) -> None:
        answer = self.ask("POST", "/v1/settings/undo", key=self.fleet)
        assert answer.status == (200 if self.undoable else 404), answer.body
        if self.undoable:
            self.target = self.undoable.pop()
            assert answer.json["target_wait"] == self.target

    def settings_are_as_set(self) -> None:
        [one] = self.ask("GET", "/v1/namespaces").json["namespaces"]
        assert {name: one[name] for name in self.namespace} == self.namespace
        assert self.ask("GET", "/v1/settings").json["target_wait"] == self.target
        history = self.ask("GET", "/v1/settings/history?limit=1000", key=self.fleet).json["changes"]
        assert sum(not one["undone"] and one["undoes"] is None for one in history) == len(self.undoable)

    def explain(self, id: str) -> None:
        """A job that waits or has had a lease has a decision, whose server class may serve it."""
        answer, state = self.ask("GET", f"/v1/jobs/{id}/decision"), self.jobs[id]["state"]
        may_lack = state in ("cancelled", "expired") or (
            state == "queued" and self.jobs[id]["start"] > self.clock.seconds
        )
        assert answer.status in ((200, 404) if may_lack else (200,)), answer.body
        if answer.status == 200 and state != "queued":
            assert answer.json["chosen"] in self.jobs[id]["servers"]
