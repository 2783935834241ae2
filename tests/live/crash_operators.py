"""Operators for the crash test: they cancel and retry many jobs at once, reward later, hold servers and change settings."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bilinq.client import Client
from bilinq.errors import Conflict, NotFound, Unavailable
from bilinq.live.wire.access import NamespaceInfo
from bilinq.live.wire.messages import SettingsUpdate

if TYPE_CHECKING:
    from crash_load import Load

MANY = "many"  # with which payloads of jobs begin that only bulk calls cancel or retry
OFTEN = "many-retried"  # with which those begin that workers fail often
PAUSE = 0.05
"""Seconds between two rounds of an operator."""


@dataclass
class Operated:
    """What operators were told."""

    tagged: dict[str, list[str]] = field(default_factory=dict)
    """Jobs that were acknowledged before all with their tag were cancelled, by tag."""
    cancelled: dict[str, int] = field(default_factory=dict)
    """How many jobs an acknowledged call has cancelled, by tag; an earlier one may have cancelled others."""
    retried: Counter[str] = field(default_factory=Counter)
    """How many acknowledged calls have retried a job, which was dead before each."""
    held: dict[str, str | None] = field(default_factory=dict)
    """How servers are held; None: released."""
    windows: list[tuple[str, float, float]] = field(default_factory=list)
    """Servers, with the times from and until which they were certainly held."""
    namespace: NamespaceInfo | None = None
    target_wait: float | None = None
    """Settings; None: never set, or in doubt."""


class Operators:
    """Roles of a load; each is the only one that does what it does."""

    def __init__(self, load: Load) -> None:
        self.load, self.told = load, Operated()
        self.served: list[tuple[str, str]] = []
        """Leases and jobs that are done, and that nobody else rewards any more."""
        self.roles = (self.cancels_many, self.retries_many, self.rewards, self.holds, self.sets)

    def cancels_many(self, client: Client, chance: random.Random, name: str) -> None:
        """Submit jobs with a tag, and cancel all that have it."""
        number = 0
        while self.load.goes_on(self.load.submitting):
            number += 1
            tag = f"{MANY}-cancelled-{number}"
            self.told.tagged[tag] = self._submit(client, chance, tag, chance.randint(2, 8))
            time.sleep(chance.uniform(0.0, PAUSE))
            self.told.cancelled[tag] = client.cancel_jobs(tag=tag).changed
            time.sleep(PAUSE)

    def retries_many(self, client: Client, chance: random.Random, name: str) -> None:
        """Submit jobs that are dead after one failure, and retry all that are; an answer that is lost leaves a doubt."""
        number = 0
        while self.load.goes_on(self.load.submitting):
            number += 1
            self._submit(client, chance, f"{OFTEN}-{number}", chance.randint(1, 2), tag=OFTEN, max_attempts=1)
            dead = [job.id for job in client.jobs(state="dead", tag=OFTEN, limit=1000).jobs]
            try:
                client.retry_jobs(tag=OFTEN)
            except Unavailable:
                continue
            self.told.retried.update(dead)
            time.sleep(2 * PAUSE)

    def rewards(self, client: Client, chance: random.Random, name: str) -> None:
        """Reward jobs long after they have ended, or correct their rewards, with a key or without."""
        number = 0
        while self.load.goes_on(self.load.submitting):
            time.sleep(PAUSE)
            if self.served:
                number += 1
                (lease, job), value = chance.choice(self.served), chance.random()
                client.reward(job, value, key=f"{name}-{number}" if chance.random() < 0.5 else None)
                self.load.said.tried[lease] = value

    def holds(self, client: Client, chance: random.Random, name: str) -> None:
        """Drain or quarantine a server, and release it before the next one is held.

        A server that is listed before its registration is on disk may be lost with its leader.
        """
        held, since = "", 0.0
        while self.load.goes_on(self.load.submitting):
            if held:
                self.told.windows[-1] = (held, since, time.time())
                client.release(held)
                self.told.held[held] = None
                held = ""
            if not (servers := [one for one in client.servers() if one.id in self.load.said.servers]):
                continue
            held, how = chance.choice(servers).id, chance.choice(("draining", "quarantined"))
            (client.drain if how == "draining" else client.quarantine)(held)
            since = time.time()
            self.told.windows.append((held, since, math.inf))
            self.told.held[held] = how
            time.sleep(chance.uniform(0.0, 4 * PAUSE))

    def sets(self, client: Client, chance: random.Random, name: str) -> None:
        """Change settings of the namespace and of the policy, and undo some of the latter."""
        while self.load.goes_on(self.load.submitting):
            backlog = chance.choice((None, 10**6, 10**7))
            one = NamespaceInfo("default", weight=chance.choice((0.5, 1.0, 2.0)), backlog=backlog)
            client.put_namespace(one)
            self.told.namespace = one
            before = client.settings().target_wait
            wanted = round(chance.uniform(0.5, 5.0), 3)
            client.update_settings(SettingsUpdate(target_wait=wanted))
            self.told.target_wait = wanted
            if chance.random() < 0.5:
                self._undo(client, before)
            time.sleep(PAUSE)

    def _undo(self, client: Client, before: float | None) -> None:
        """Undo the last change; after an answer that was lost, the same call finds that another is the last, or none."""
        with suppress(Conflict, NotFound):
            client.undo_settings(client.settings_history(limit=1)[0].id)
        self.told.target_wait = before

    def _submit(
        self,
        client: Client,
        chance: random.Random,
        name: str,
        count: int,
        tag: str = "",
        max_attempts: int | None = None,
    ) -> list[str]:
        tags = [tag or name]
        many = [
            self.load.new(chance, name, k, keyed=True, units=1, tags=tags, max_attempts=max_attempts)
            for k in range(count)
        ]
        refs = client.submit_all(many)
        self.load.said.jobs.update((job.payload, ref.id) for job, ref in zip(many, refs, strict=True))
        return [ref.id for ref in refs]
