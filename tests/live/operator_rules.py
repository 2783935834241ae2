"""Rules of the state machine test for those who operate the service: bulk calls, held servers, namespaces, settings."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from asgi import Answer
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

HELD = {"drain": "draining", "quarantine": "quarantined", "release": None}
FILTERS: tuple[dict[str, str], ...] = (
    {"tag": "some"},
    {"class": "a", "state": "queued"},
    {"state": "leased"},
    {"class": "b", "tag": "some"},
    {},
)


class OperatorRules(RuleBasedStateMachine):
    """Calls that change many jobs, servers, or settings, with what they must return."""

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

    def ask(self, method: str, url: str, body: Any = None) -> Answer:
        raise NotImplementedError

    def cancelled(self, id: str) -> None:
        """Note that a job was cancelled; its lease is over."""
        self.jobs[id]["state"] = "cancelled"
        for lease, (job, _) in list(self.active.items()):
            if job == id:
                del self.active[lease]
                self.over.add(lease)

    @precondition(lambda self: self.jobs)
    @rule(wanted=st.sampled_from(FILTERS))
    def cancel_many(self, wanted: dict[str, str]) -> None:
        """All that match and have not ended are cancelled."""
        some = [id for id in self._matching(wanted) if self.jobs[id]["state"] in ("queued", "leased")]
        self._change_many("cancel", wanted, len(some))
        for id in some if wanted else ():
            self.cancelled(id)
        self._lists("cancelled")

    @precondition(lambda self: any(job["state"] == "dead" for job in self.jobs.values()))
    @rule(wanted=st.sampled_from([{"state": "dead"}, {"tag": "some"}, {"class": "a"}, {}]))
    def retry_many(self, wanted: dict[str, str]) -> None:
        """All dead ones that match are queued, with all their attempts."""
        some = [id for id in self._matching(wanted) if self.jobs[id]["state"] == "dead"]
        self._change_many("retry", wanted, len(some))
        for id in some if wanted else ():
            self.jobs[id] |= {"state": "queued", "attempts": 0}
        self._lists("dead")

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

    @precondition(lambda self: self.servers)
    @rule()
    def list_servers(self) -> None:
        found = self.ask("GET", "/v1/servers").json
        assert {one["id"]: one["held"] for one in found} == {id: self.held.get(id) for id in self.servers}

    @rule(weight=st.sampled_from([0.5, 1.0, 2.0]), backlog=st.sampled_from([None, 1000]))
    def put_namespace(self, weight: float, backlog: int | None) -> None:
        """What is set for a namespace is set also after a restart."""
        self.namespace = {"weight": weight, "backlog": backlog}
        assert self.ask("PUT", "/v1/namespaces/default", self.namespace).status == 200
        self.settings_are_as_set()

    @rule(wait=st.sampled_from([0.5, 1.0, 30.0]))
    def change_settings(self, wait: float) -> None:
        answer = self.ask("PATCH", "/v1/settings", {"target_wait": wait})
        assert (answer.status, answer.json["target_wait"]) == (200, wait)
        if wait != self.target:
            self.undoable.append(self.target)
        self.target = wait

    @rule()
    def undo_settings(self) -> None:
        answer = self.ask("POST", "/v1/settings/undo")
        assert answer.status == (200 if self.undoable else 404), answer.body
        if self.undoable:
            self.target = self.undoable.pop()
            assert answer.json["target_wait"] == self.target

    @rule()
    def settings_are_as_set(self) -> None:
        [one] = self.ask("GET", "/v1/namespaces").json["namespaces"]
        assert {name: one[name] for name in self.namespace} == self.namespace
        assert self.ask("GET", "/v1/settings").json["target_wait"] == self.target
        history = self.ask("GET", "/v1/settings/history?limit=1000").json["changes"]
        assert sum(not one["undone"] and one["undoes"] is None for one in history) == len(self.undoable)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def explain(self, data: st.DataObject) -> None:
        """A job that waits or has had a lease has a decision, whose server class exists."""
        id = data.draw(st.sampled_from(sorted(self.jobs)))
        answer, state = self.ask("GET", f"/v1/jobs/{id}/decision"), self.jobs[id]["state"]
        assert answer.status in ((200, 404) if state == "cancelled" else (200,)), answer.body
        if answer.status == 200 and state != "queued":
            assert answer.json["chosen"] in ("x", "y")
