"""The engine of the default scheduler: it matches jobs with servers that are idle or free soon, by what it has learnt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from math import exp, inf, log, nan
from typing import Any

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray, positive, scalar, within
from bilinq.errors import BadInput
from bilinq.learning import Health
from bilinq.scheduler.board import THERE, Board, Terms
from bilinq.scheduler.classes import LookAheadSettings, Roster
from bilinq.scheduler.engine import Engine, Pool, Service
from bilinq.scheduler.explain import Choices, Decision
from bilinq.scheduler.learnt import Learnt, Services
from bilinq.scheduler.ledger import Entry, Job, job_features
from bilinq.scheduler.shares import Shares
from bilinq.scheduler.snapshot import LATEST, class_features, encode, label, number, whole
from bilinq.scheduler.waits import Waits
from bilinq.scheduler.window import window

SCALE = 0.2  # least standard errors by which values are drawn, or added; chosen over many tables, see docs/contest.md
CROWDING = 3.0  # weight of the price of server time, Eq. (66)
STEADY = 2.0  # mean durations over which the jobs that wait for a server class are averaged
ABSENT = 3.0  # mean durations after which servers that are neither idle nor busy are forgotten
LARGEST = 1e100  # of a feature


class LookAhead(Engine):
    """The program of Eq. (63) in every slot, with values, durations and a price of waiting that are learnt."""

    def __init__(self, roster: Roster, settings: LookAheadSettings, seed: int) -> None:
        self.roster, self._settings = roster, settings
        self.board = Board(roster, {None: Pool()}, seed, settings.exploration)
        self._pending: list[Service] = []
        self._shares = Shares()
        self._arrived, self._decided = 0, 0.0  # arrivals that an older version counted when they came
        self.own = 0  # length of the features of single jobs; the models make room when they learn from the first
        self.expected = np.zeros((len(roster.jobs), len(roster.servers)))
        self.learnt = Learnt.nothing(roster, settings)

    def __repr__(self) -> str:
        return f"LookAhead({self._settings})"

    # Jobs

    def check(self, entry: Entry) -> None:
        self.check_features(entry.features)
        for name in (*(entry.duration or ()), *(entry.cost or ())):
            self.roster.column(name)

    def check_features(self, features: Array | None) -> None:
        if features is None:
            return
        if (np.abs(features) > LARGEST).any():
            raise BadInput(f"features must be at most {LARGEST:g} in size; got {np.abs(features).max():g}")
        if self.own and features.size != self.own:
            rule = f"features of a job must have length {self.own}, as those of earlier jobs"
            raise BadInput(f"{rule}; got {features.size}")

    def add(self, job: Job, entry: Entry, first: bool = False) -> None:
        self._make_room(entry.features)
        self.board.add(job, entry, first, counted=first)

    def give_back(self, job: Job, entry: Entry) -> None:
        super().give_back(job, entry)
        self._shares.give_back(*self.board.share_of(entry.pool))

    def resume(self, job: Job, entry: Entry, counted: bool) -> None:
        self._make_room(entry.features)
        self.board.add(job, entry, counted=counted)

    def uncounted(self) -> list[Job]:
        return self.board.uncounted()

    def place(self, job: Job, entry: Entry) -> None:
        self._make_room(entry.features)

    def arrived(self, fresh: Iterable[tuple[Job, Entry]]) -> None:
        self.board.arrived(fresh)

    def set_pool(self, name: str, pool: Pool, waiting: Iterable[tuple[Job, Entry]]) -> None:
        self.board.set_pool(name, pool, waiting)

    def remove(self, job: Job, entry: Entry) -> None:
        self.board.remove(job)

    def order(self) -> list[Job]:
        return self.board.order()

    def queue(self) -> dict[str, int]:
        return self.board.queue()

    def expired(self, now: float) -> list[Job]:
        return self.board.expired(now)

    # Decisions

    def decide(
        self, idle: Array, out: Array, now: float, elapsed: float, pools: Collection[str] | None = None
    ) -> list[tuple[Job, int, Decision | None]]:
        self._learn(now)
        self.board.settle()
        waiting = self._follow(idle + out, now)
        self.expected = np.zeros((len(self.roster.jobs), len(self.roster.servers)))
        return self._match(idle, now, pools, waiting) if len(self.board) and idle.any() else []

    def _follow(self, present: Array, now: float) -> int:
        """Note the servers, and adjust the price of waiting to the queue since the last decision; return how many wait.

        Only jobs that a server class that is there may serve count: no price makes the others wait less.
        """
        from bilinq.scheduler.look_ahead_kernels import survey

        learnt, waits, board = self.learnt, self.learnt.waits, self.board
        before, self._decided = self._decided, now
        learnt.present = np.maximum(present, learnt.present * exp((before - now) / (ABSENT * learnt.mean_time)))
        waited, late, arrivals, waiting = survey(
            board.table, board.pairs, learnt.present, now, before, waits.goal(learnt.mean_time)
        )
        waits.update(now - before, waited, late, arrivals + self._arrived, learnt.mean_time)
        self._arrived = 0
        return waiting

    def _match(
        self, idle: Array, now: float, pools: Collection[str] | None, waiting: int
    ) -> list[tuple[Job, int, Decision | None]]:
        """Return jobs that start now, with their columns; so many are `waiting` that count.

        Where jobs of several pools wait, each may begin the services for which its share leaves room. Servers that these
        decline go to the others.
        """
        board, shares, terms = self.board, self._shares, self._terms(now, waiting)
        sharing, left = board.sharing(), idle.copy()
        if not sharing:
            return self._begin(*self._choose(left, board.allowed(pools), terms))
        shares.wait(sharing)
        rest, found = board.among(sharing, pools), list[tuple[Job, int, Decision | None]]()
        while rest and left.any():
            room = shares.room(rest, int(left.sum()))
            able = [pool for pool, number in room.items() if number]
            row, column, numbers = self._choose(left, board.only(able), terms)
            kept = np.array(shares.take(board.table["pool"][row].tolist(), rest, room), np.bool_)
            found += self._begin(row[kept], column[kept], numbers[kept])
            left -= np.bincount(column[kept], minlength=left.size)
            if kept.all() and left.any():  # no pool has more jobs to start than room
                declined = [pool for pool in able if room[pool]]
                shares.decline(rest, declined, int(left.sum()))
                rest = {pool: weight for pool, weight in rest.items() if pool not in declined}
        return found

    def _choose(self, idle: Array, allowed: BoolArray, terms: Terms) -> tuple[IntArray, IntArray, Array]:
        """Return the rows and columns (S,) of jobs that should start, the most urgent first, and the numbers behind that."""
        from bilinq.scheduler.look_ahead_kernels import choose

        board, learnt = self.board, self.learnt
        rows = window(board.table, board.pairs, allowed, idle, terms.now, learnt.mean_time)
        most, left, ahead = min(rows.size, int(idle.sum())), idle.copy(), np.zeros(idle.size)
        row, column, numbers = np.empty(most, np.int64), np.empty(most, np.int64), np.empty((most, 5, idle.size))
        starts = choose(board.table, board.pairs, board.features, rows, learnt.value.arrays(), learnt.time.arrays(),
                        terms, self._gap(), left, ahead, row, column, numbers)  # fmt: skip
        self._note_crowd(ahead, terms.now)
        return row[:starts], column[:starts], numbers[:starts]

    def _begin(self, row: IntArray, column: IntArray, numbers: Array) -> list[tuple[Job, int, Decision | None]]:
        """Take jobs off the board; return them with their columns and decisions."""
        np.add.at(self.expected, (self.board.table["kind"][row], column), 1.0)
        choices = self._choices(numbers, column)
        return [(job, int(column[k]), Decision(choices, k)) for k, job in enumerate(self.board.take(row.tolist()))]

    def _servable(self) -> int:
        """Return how many waiting jobs a server class that is there may serve."""
        from bilinq.scheduler.look_ahead_kernels import count_servable

        self.board.settle()
        return count_servable(self.board.table, self.board.pairs, self.learnt.present)

    def _terms(self, now: float, waiting: int) -> Terms:
        learnt = self.learnt
        eta = learnt.waits.price(waiting, float(learnt.present.sum()), learnt.mean_time)
        return Terms(now, eta, learnt.mean_time, float(learnt.smear[0] / learnt.smear[1]), SCALE, self._crowding())

    def _gap(self) -> Array:
        """Return the mean time between two releases of a server of each class (J,); infinity where none is present."""
        if self._settings.work_conserving:
            return np.full(self.learnt.present.size, inf)
        present = self.learnt.present
        return np.where(present >= THERE, self.learnt.class_time / np.maximum(present, THERE), inf)

    def _crowding(self) -> Array:
        """Return the price of server time (J,), in units of that of waiting, Eq. (66)."""
        return np.asarray(CROWDING * self.learnt.crowd / np.maximum(self.learnt.present, 1.0))

    def _note_crowd(self, waiting: Array, now: float) -> None:
        learnt = self.learnt
        part = 1.0 - exp(-max(now - learnt.looked, 0.0) / (STEADY * learnt.mean_time))
        learnt.crowd = learnt.crowd + part * (waiting - learnt.crowd)
        learnt.looked = now

    def explain(self, job: Job, entry: Entry, out: Array, now: float) -> Decision:
        from bilinq.scheduler.look_ahead_kernels import weigh_jobs

        row, gap, board, learnt = np.array([self.board.row(job)]), self._gap(), self.board, self.learnt
        urgency, bend, duration, fee, worth = np.empty(1), np.empty(1), *np.empty((3, 1, gap.size))
        weigh_jobs(board.table, board.pairs, board.features, row, learnt.value.arrays(), learnt.time.arrays(),
                   self._terms(now, self._servable()), urgency, bend, duration, fee, worth)  # fmt: skip
        delay, pair = np.where(np.isinf(gap), 0.0, gap), board.pairs[row]
        there = (learnt.present >= THERE) | ~learnt.present.any()  # before any server was seen, all may be
        toll = np.where(pair["eligible"] & there, (urgency + bend * delay) * delay, inf)
        numbers = np.stack([pair["value"], pair["value_width"], duration, fee, toll], axis=1)
        return Decision(self._choices(numbers, np.array([-1])), 0)

    def _choices(self, numbers: Array, column: IntArray) -> Choices:
        noise = self.learnt.value.noise
        return Choices(numbers, column, SCALE, noise, self._settings.exploration, tuple(self.roster.servers))

    # Learning

    def observe(self, service: Service) -> None:
        self.check_features(service.features)
        self._make_room(service.features)
        self._pending.append(service)

    def _learn(self, now: float | None) -> None:
        """Learn from what was observed; services whose duration is measured wait for that if there is no time `now`."""
        pending, self._pending = self._pending, []
        if not self.learnt.own:
            first = next((k for k, one in enumerate(pending) if one.features is not None), None)
            if first is not None:  # this is part of what was learnt, so it happens here, not when the job came
                features = pending[first].features
                assert features is not None
                self._learn_some(pending[:first], now)
                self.learnt.widen(features)
                pending = pending[first:]
        self._learn_some(pending, now)

    def _learn_some(self, pending: list[Service], now: float | None) -> None:
        """Learn from services; those whose duration is still to be measured stay pending without their reward."""
        if not pending:
            return
        rows, columns = self.roster.jobs, self.roster.servers
        took = []
        for one in pending:
            time = one.duration
            if time is None and one.started is not None:
                if now is None:
                    self._pending.append(one._replace(reward=None))
                elif now > one.started:  # else the clock stands still
                    time = now - one.started
            took.append(nan if time is None else time)
        kind = np.array([rows[one.job_class] for one in pending])
        self.learnt.learn(
            Services(
                features=self._features(kind, [one.features for one in pending], [one.shared for one in pending]),
                kind=kind,
                column=np.array([columns[one.server_class] for one in pending]),
                reward=np.array([one.reward for one in pending], np.float64),
                weight=np.array([one.weight for one in pending], np.float64), duration=np.array(took, np.float64),
                log_duration=np.array([log(time) for time in took]),
            )
        )  # fmt: skip

    def epoch(self, server_class: str) -> int:
        return int(self.learnt.value.epoch[self.roster.column(server_class)])

    def correct(self, service: Service, before: float, epoch: int) -> None:
        assert service.reward is not None
        self._learn(None)
        row, column = self.roster.row(service.job_class), self.roster.column(service.server_class)
        if self.learnt.value.epoch[column] == epoch:  # else what it corrects no longer counts
            [features] = self._features(np.array([row]), [service.features], [service.shared])
            self.learnt.value.correct(features, row, column, before, service.reward)

    def forget(self, server_class: str) -> None:
        self._learn(None)
        self.learnt.forget(self.roster.column(server_class))

    def _features(
        self, kind: IntArray, own: Sequence[Array | None], then: Sequence[tuple[float, ...] | None] = ()
    ) -> Array:
        """Return the features that the models know of jobs (n, d): those of their classes, then their own; NaN if none.

        `then` are those that their classes had, where they have changed since.
        """
        shared: Array = self.board.shared[kind]
        for k, old in enumerate(then):
            if old is not None:
                shared[k] = old
        if not self.learnt.own:
            return shared
        made = np.full((len(own), shared.shape[1] + self.learnt.own), nan)
        made[:, : shared.shape[1]] = shared
        for k, features in enumerate(own):
            if features is not None:
                made[k, shared.shape[1] :] = features
        return made

    def _make_room(self, features: Array | None) -> None:
        """Make room on the board for features of single jobs; from now on all of them have this length."""
        if features is not None and not self.own:
            self.own = features.size
            self.board.widen(features.size)

    # Classes, settings, state

    def set_roster(self, roster: Roster, waiting: list[tuple[Job, Entry]]) -> None:
        self._learn(None)
        self.learnt.arrange(self.roster, roster)
        self._pending = [
            one for one in self._pending if one.job_class in roster.jobs and one.server_class in roster.servers
        ]
        new = set(self.board.uncounted())
        self.roster, self.board = roster, self.board.rebuilt(roster, self._settings.exploration)
        for job, entry in waiting:
            self.board.add(job, entry, counted=job not in new)
        self.expected = np.zeros((len(roster.jobs), len(roster.servers)))

    def check_roster(self, roster: Roster) -> None:
        mine, theirs = (len(one.job_classes[0].features) for one in (self.roster, roster))
        if mine != theirs:
            raise BadInput(f"features of job classes must have length {mine} as before; got {theirs}")

    @property
    def settings(self) -> LookAheadSettings:
        return self._settings

    def update(self, changes: dict[str, Any]) -> None:
        given = {name: value for name, value in changes.items() if value is not None}
        for name in given:
            if name not in LookAheadSettings.__dataclass_fields__:
                raise BadInput(f"{name} is not a setting of {self!r} that can change while it runs")
        if "V" in given:
            given = {"target_wait": None, "percentile": None} | given
        elif given.keys() & {"target_wait", "percentile"}:
            given = {"V": None} | given
        self._settings = replace(self._settings, **given)
        waits = self.learnt.waits
        waits.target, waits.fixed = self._settings.target_wait, self._settings.V
        waits.percentile = self._settings.percentile
        if "exploration" in given:
            self.board.explore(self._settings.exploration)

    @property
    def V(self) -> float:
        return self.learnt.waits.V

    def waits(self) -> Waits:
        learnt = self.learnt
        stranded = len(self.board) - self._servable() if learnt.present.any() else 0  # else no server was ever seen
        return learnt.waits.status(learnt.mean_time, stranded)

    def mean_duration(self) -> float:
        return self.learnt.mean_time

    def beliefs(self) -> tuple[Array, Array] | None:
        every = np.arange(len(self.roster.jobs))
        return self.learnt.value.predict(self._features(every, [None] * every.size), every)

    def health(self, unit: float) -> Health | None:
        model = self.learnt.value
        values = 1.0 / np.linalg.eigvalsh(model.long.inverse)
        return Health(model.seen, unit * model.noise**0.5, float(values.min()), float(values.max()))

    def sound(self) -> bool:
        return self.learnt.sound()

    def state(self) -> dict[str, Any]:
        pending = [
            [*one[:3], None if one.features is None else one.features.tolist(), *one[4:]] for one in self._pending
        ]
        return {"state": encode(self.learnt), "pending": pending, "decided": self._decided}

    def load(self, state: dict[str, Any], now: float) -> None:
        within("features of job classes", self.board.shared, -LARGEST, LARGEST)
        self.learnt = Learnt.restored(state["state"], self.learnt)
        self._make_room(np.zeros(self.learnt.own) if self.learnt.own else None)
        for one in state["pending"]:
            service = self._service(now, *one)
            self.check_features(service.features)
            self._make_room(service.features)
            self._pending.append(service)
        self._arrived = whole("arrived", state.get("arrived", 0))
        self._decided = number("decided", state["decided"], 0.0, now)

    def _service(
        self, now: float, job: Any, kind: str, server: str, features: Any, reward: Any, duration: Any, started: Any,
        weight: Any, shared: Any = None,
    ) -> Service:  # fmt: skip
        """Return a service that ended before a snapshot was made, after checks."""
        self.roster.row(kind), self.roster.column(server)
        return Service(
            label("job", job), kind, server, job_features(features),
            None if reward is None else number("reward", reward, -1.0, 1.0),
            None if duration is None else scalar("duration", duration, positive),
            None if started is None else number("started", started, -LATEST, now),
            number("weight", weight, 1e-30, 1e30), class_features("shared", shared, self.board.shared.shape[1]),
        )  # fmt: skip
