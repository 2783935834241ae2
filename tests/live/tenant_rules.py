"""Rules of the state machine test for a second namespace: it has jobs, a server and rewards, and neither sees the other."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from operator_rules import OperatorRules


class TenantRules(OperatorRules):
    """Calls with the key `other` of another namespace, whose jobs are `theirs`, by id with their states."""

    other: str
    rewards: int
    attempts: int

    def __init__(self) -> None:
        super().__init__()
        self.theirs: dict[str, str] = {}
        self.lost: dict[str, int] = {}
        self.their_reward: dict[str, float | None] = {}
        self.their_server: str | None = None

    @precondition(lambda self: [*self.theirs.values()].count("queued") < 6)
    @rule(count=st.integers(1, 3), job_class=st.sampled_from("ab"))
    def other_submits(self, count: int, job_class: str) -> None:
        body = {"class": job_class, "tags": ["some"], "key": f"k{count}" if not self.theirs else None}
        answer = self.ask("POST", "/v1/jobs", {"jobs": [body] if body["key"] else [body] * count}, key=self.other)
        assert answer.status == 201, answer.body
        ids = [job["id"] for job in answer.json["jobs"]]
        assert not {*ids} & (self.jobs.keys() | self.theirs.keys()), "a key is that of its namespace"
        self.theirs |= dict.fromkeys(ids, "queued")

    @rule(reward=st.sampled_from([None, 0.5]), fails=st.booleans())
    def other_works(self, reward: float | None, fails: bool) -> None:
        """Its server gets one of its jobs if one waits, and no other."""
        if self.their_server is None:
            self.their_server = self.ask("POST", "/v1/servers", {"class": "x"}, key=self.other).json["id"]
        leases = self.ask("POST", "/v1/work", {"lease": [self.their_server]}, key=self.other).json["leases"]
        waiting = [id for id, state in self.theirs.items() if state == "queued"]
        assert [lease["job"]["id"] in waiting for lease in leases] == [True] * bool(waiting)
        for lease in leases:
            self._end(lease, lease["job"]["id"], reward, fails)

    def _end(self, lease: Any, id: str, reward: float | None, fails: bool) -> None:
        own, foreign = {"fence": lease["fence"]}, f"/v1/leases/{lease['lease']}"
        assert self.ask("POST", f"{foreign}/finish", own | {"reward": 1.0}).status == 404
        if fails:
            answer = self.ask("POST", f"{foreign}/fail", own, key=self.other)
            self.lost[id] = self.lost.get(id, 0) + 1
            self.theirs[id] = "dead" if self.lost[id] == self.attempts else "queued"
        else:
            answer = self.ask("POST", f"{foreign}/finish", own | {"reward": reward}, key=self.other)
            self.theirs[id], self.their_reward[id] = "done", reward
            self.rewards += reward is not None
        assert (answer.status, answer.json["state"]) == (200, self.theirs[id])

    @precondition(lambda self: self.their_reward)
    @rule(data=st.data(), reward=st.sampled_from([0.0, 0.75]))
    def other_rewards_later(self, data: st.DataObject, reward: float) -> None:
        id = data.draw(st.sampled_from(sorted(self.their_reward)))
        answer = self.ask("POST", f"/v1/jobs/{id}/reward", {"reward": reward}, key=self.other)
        assert answer.status == 200, answer.body
        self.rewards += self.their_reward[id] is None
        self.their_reward[id] = reward

    def neither_sees_the_other(self, data: st.DataObject) -> None:
        """Lists and counts are those of the namespace of the key, and single jobs of the other one do not exist."""
        for key, own, foreign in (("", self.jobs, self.theirs), (self.other, self.theirs, self.jobs)):
            listed = self.ask("GET", "/v1/jobs?limit=1000", key=key).json["jobs"]
            assert {job["id"] for job in listed} == own.keys()
            if foreign:
                id = data.draw(st.sampled_from(sorted(foreign)))
                for method, path, body in CALLS:
                    assert self.ask(method, f"/v1/jobs/{id}{path}", body, key=key).status == 404, (method, path)
        counts = self.ask("GET", "/v1/state", key=self.other).json["job_classes"]
        assert sum(one["queued"] for one in counts) == [*self.theirs.values()].count("queued")


CALLS: tuple[tuple[str, str, Any], ...] = (
    ("GET", "", None),
    ("GET", "/decision", None),
    ("DELETE", "", None),
    ("POST", "/reward", {"reward": 1.0}),
)
"""Calls about a single job."""
