"""The engine of the default scheduler: it matches jobs with servers that are idle or free soon, by what it has learnt."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log
from typing import Any, NamedTuple

import numpy as np

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.assignment.matching import solve
from bilinq.errors import BadInput
from bilinq.learning import Health, PairModel
from bilinq.learning.pair_model import CAUTIOUS
from bilinq.scheduler.board import Board
from bilinq.scheduler.classes import LookAheadSettings, Roster
from bilinq.scheduler.engine import Engine, Pool, Service, counts
from bilinq.scheduler.explain import Decision
from bilinq.scheduler.ledger import Entry, Job
from bilinq.scheduler.snapshot import Draws, decode, encode
from bilinq.scheduler.waits import WaitController, Waits

SCALE = 0.2  # standard errors by which values are drawn, or added; chosen over many tables, see docs/contest.md
WINDOW = 256  # jobs that are all looked at; of more, the most urgent ones of each server class
BATCH, MORE = 64, 2
"""Jobs that are matched together; also how many are looked at for a server class, with two more for each idle server."""
CROWDING = 3.0  # weight of the price of server time, Eq. (66)
STEADY = 2.0  # mean durations over which the jobs that wait for a server class are averaged
ABSENT = 3.0  # mean durations after which servers that are neither idle nor busy are forgotten
DURATIONS = 200.0  # services over which durations are averaged
FARTHEST = 100.0  # factor by which a predicted duration may differ from the mean
LARGEST = 1e100  # of a feature


@dataclass
class Learnt:
    """Everything that a look-ahead knows; a snapshot keeps it.

    `value` predicts rewards and `time` the logarithms of durations; `smear` are sums of durations and of their predictions,
    Eq. (70). `crowd` (J,) is how many jobs wait for each server class and `present` (J,) how many servers it has, both
    averaged. `moments` (3, d) are count, mean and sum of squares of the features.
    """

    value: PairModel
    time: PairModel
    waits: WaitController
    smear: Array
    class_time: Array
    crowd: Array
    present: Array
    moments: Array
    own: int = 0
    mean_time: float = 1.0
    timed: float = 0.0
    looked: float = 0.0


class Weighed(NamedTuple):
    """Arguments of the program for K jobs: price of waiting and its growth (K,), duration, fee and value (K, J)."""

    urgency: Array
    bend: Array
    duration: Array
    fee: Array
    value: Array


class LookAhead(Engine):
    """The program of Eq. (63) in every slot, with values, durations and a price of waiting that are learnt."""

    def __init__(self, roster: Roster, settings: LookAheadSettings, seed: int) -> None:
        self.roster, self._settings = roster, settings
        self._draws = Draws(seed)
        I, J, d = len(roster.jobs), len(roster.servers), len(roster.job_classes[0].features)
        self.board = Board(J, d)
        self._pools: dict[str | None, Pool] = {None: Pool()}
        self._pool_number: dict[str | None, int] = {None: 0}
        self._pending: list[Service] = []
        self._arrived, self._decided = 0, 0.0
        self._deadlines: dict[Job, float] = {}
        self.own = 0  # length of the features of single jobs; the models make room when they learn from the first
        self.expected = np.zeros((I, J))
        waits = WaitController(settings.target_wait, settings.V, settings.percentile)
        value, time = _new_models(roster)
        self.learnt = Learnt(
            value=value, time=time, waits=waits, smear=np.ones(2), class_time=np.ones(J), crowd=np.zeros(J),
            present=np.zeros(J), moments=np.zeros((3, d)),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"LookAhead({self._settings})"

    # Jobs

    def check(self, entry: Entry) -> None:
        if entry.features is not None:
            self._check_features(entry.features)
        for name in entry.duration or ():
            self.roster.column(name)

    def _check_features(self, features: Array) -> None:
        if (np.abs(features) > LARGEST).any():
            raise BadInput(f"features must be at most {LARGEST:g} in size; got {np.abs(features).max():g}")
        if self.own and features.size != self.own:
            rule = f"features of a job must have length {self.own}, as those of earlier jobs"
            raise BadInput(f"{rule}; got {features.size}")

    def add(self, job: Job, entry: Entry, first: bool = False) -> None:
        if not first:
            self._arrived += 1
        self._put(job, entry, first)

    def place(self, job: Job, entry: Entry) -> None:
        self._make_room(entry.features)

    def arrived(self, job: Job, entry: Entry) -> None:
        if job in self.board:
            self.board.since[self.board.row(job)] = entry.since
            if job in self._deadlines:
                self._deadlines[job] = entry.deadline

    def resume(self, job: Job, entry: Entry) -> None:
        self._put(job, entry, first=False)

    def _put(self, job: Job, entry: Entry, first: bool) -> None:
        self._make_room(entry.features)
        roster, features = self.roster, self._features(entry.job_class, entry.features, self.own)
        kind, J = roster.row(entry.job_class), len(roster.servers)
        known = np.full(J, np.nan)
        for name, value in (entry.duration or {}).items():
            if name in roster.servers:
                known[roster.column(name)] = value
        eligible, weight = self._claim(entry)
        self.board.add(job, kind=kind, features=features, eligible=eligible, known=known, weight=weight,
                       pool=self._number(entry.pool), serial=entry.serial, draw=self._draw(entry.serial, J),
                       since=entry.since, plain=entry.plain, first=first)  # fmt: skip
        if entry.deadline < inf:
            self._deadlines[job] = entry.deadline

    def _claim(self, entry: Entry) -> tuple[BoolArray, float]:
        """Return which server classes may serve a job (J,), and its weight."""
        roster, kind, pool = (
            self.roster,
            self.roster.row(entry.job_class),
            self._pools.get(entry.pool, self._pools[None]),
        )
        eligible = np.ones(len(roster.servers), np.bool_) if roster.eligible is None else roster.eligible[0, kind]
        for some in (entry.servers, pool.servers):
            if some is not None:
                eligible = eligible & np.array([name in some for name in roster.servers])
        return eligible, pool.weight * (roster.job_classes[kind].weight if entry.weight is None else entry.weight)

    def _number(self, pool: str | None) -> int:
        return self._pool_number.setdefault(pool, len(self._pool_number))

    def set_pool(self, name: str, pool: Pool, waiting: Iterable[tuple[Job, Entry]]) -> None:
        self._pools[name] = pool
        for job, entry in waiting:
            row = self.board.row(job)
            self.board.eligible[row], self.board.weight[row] = self._claim(entry)

    def _draw(self, serial: int, J: int) -> Array:
        if self._settings.exploration == "thompson":
            return self._draws.of_slot(serial).standard_normal(J)
        return np.full(J, 1.0 if self._settings.exploration == "ucb" else 0.0)

    def remove(self, job: Job, entry: Entry) -> None:
        self.board.remove(job)
        self._deadlines.pop(job, None)

    def order(self) -> list[Job]:
        return self.board.order()

    def queue(self) -> dict[str, int]:
        number = self.board.count(len(self.roster.jobs)).tolist()
        return dict(zip(self.roster.jobs, number, strict=True))

    def expired(self, now: float) -> list[Job]:
        """Return the waiting jobs whose deadline has passed."""
        return [job for job, deadline in self._deadlines.items() if deadline <= now]

    # Decisions

    def decide(
        self, idle: Array, out: Array, now: float, elapsed: float, pools: Collection[str] | None = None
    ) -> list[tuple[Job, int, Decision | None]]:
        self._learn(now)
        self._follow(idle + out, now)
        found: list[tuple[Job, int, Decision | None]] = []
        pairs: list[tuple[int, int]] = []
        if len(self.board) and idle.any():
            for row, column, decision in self._match(idle, now, pools):
                job = self.board.first_of_class(row)
                pairs.append((int(self.board.kind[row]), column))
                self.board.remove(job)
                self._deadlines.pop(job, None)
                found.append((job, column, decision))
        self.expected = counts((len(self.roster.jobs), len(self.roster.servers)), pairs)
        return found

    def _follow(self, present: Array, now: float) -> None:
        """Adjust the price of waiting to the queue since the last decision, and note the servers."""
        learnt = self.learnt
        elapsed, self._decided = now - self._decided, now
        target, age = learnt.waits.goal(learnt.mean_time), now - self.board.since[self.board.rows]
        late = int(((age > target) & (age - elapsed <= target)).sum())
        learnt.waits.update(elapsed, float(np.minimum(age, elapsed).sum()), late, self._arrived, learnt.mean_time)
        self._arrived = 0
        learnt.present = np.maximum(present, learnt.present * exp(-elapsed / (ABSENT * learnt.mean_time)))

    def _match(self, idle: Array, now: float, pools: Collection[str] | None) -> Iterable[tuple[int, int, Decision]]:
        """Yield rows that start now with their columns, batch by batch, the most urgent jobs first."""
        rows, eta = self._window(idle, now, pools), self._price()
        idle, ahead, gap, crowding = idle.copy(), np.zeros(idle.size), self._gap(), self._crowding()
        for first in range(0, rows.size, BATCH):
            some = rows[first : first + BATCH]
            job = self._weigh(some, now, eta, crowding)
            found = solve(job.value, job.urgency, job.bend, idle, ahead, gap)
            starts = np.flatnonzero(found.delay == 0.0)
            for k in starts.tolist():
                row = some[k]
                toll = np.where(self.board.eligible[row], found.toll[k], inf)
                yield int(row), int(found.server[k]), self._decision(row, job.duration[k], job.fee[k], toll)
            ahead += np.bincount(found.server[(found.delay > 0.0) & (found.server >= 0)], minlength=idle.size)
            idle -= np.bincount(found.server[starts], minlength=idle.size)
            if not idle.any():
                break
        self._note_crowd(ahead, now)

    def _price(self) -> float:
        learnt = self.learnt
        return learnt.waits.price(len(self.board), float(learnt.present.sum()), learnt.mean_time)

    def _weigh(self, rows: IntArray, now: float, eta: float, crowding: Array) -> Weighed:
        """Return what the program needs to know of rows, by the estimates of now."""
        from bilinq.assignment.match_kernels import weigh

        board, learnt = self.board, self.learnt
        shape = rows.size, board.draw.shape[1]
        made = Weighed(np.empty(shape[0]), np.empty(shape[0]), np.empty(shape), np.empty(shape), np.empty(shape))
        features = board.features
        if self.own and not learnt.own:  # jobs have features that the models do not know yet
            features = np.ascontiguousarray(features[:, : -self.own])
        learnt.value.predict_into(features, board.kind, rows, board.value_stamp, board.value, board.value_width)
        learnt.time.predict_into(features, board.kind, rows, board.time_stamp, board.time, board.time_width)
        smear = learnt.smear[0] / learnt.smear[1]
        weigh(rows, now, eta, learnt.mean_time, SCALE, crowding, board.value, board.value_width, board.time, smear, FARTHEST,
              board.known, board.draw, board.eligible, board.weight, board.since, *made)  # fmt: skip
        return made

    def _window(self, idle: Array, now: float, pools: Collection[str] | None = None) -> IntArray:
        """Return the rows to look at, most urgent first: all, or of many the most urgent for each idle server class."""
        board, rows = self.board, self.board.rows
        if pools is not None:
            rows = rows[np.isin(board.pool[rows], [0, *map(self._number, pools)])]
        urgency = board.weight[rows] * (self.learnt.mean_time + now - board.since[rows])
        rows = rows[np.lexsort((board.rank[rows], -urgency))]
        if rows.size <= WINDOW:
            return rows
        kept = np.zeros(rows.size, np.bool_)
        for j in np.flatnonzero(idle):
            kept[np.flatnonzero(board.eligible[rows, j])[: BATCH + MORE * int(idle[j])]] = True
        return rows[kept]

    def _gap(self) -> Array:
        """Return the mean time between two releases of a server of each class (J,); infinity where none is present."""
        if self._settings.work_conserving:
            return np.full(self.learnt.present.size, inf)
        present = self.learnt.present
        return np.where(present >= 0.5, self.learnt.class_time / np.maximum(present, 0.5), inf)

    def _crowding(self) -> Array:
        """Return the price of server time (J,), in units of that of waiting, Eq. (66)."""
        return np.asarray(CROWDING * self.learnt.crowd / np.maximum(self.learnt.present, 1.0))

    def _note_crowd(self, waiting: Array, now: float) -> None:
        learnt = self.learnt
        part = 1.0 - exp(-max(now - learnt.looked, 0.0) / (STEADY * learnt.mean_time))
        learnt.crowd = learnt.crowd + part * (waiting - learnt.crowd)
        learnt.looked = now

    def explain(self, job: Job, entry: Entry, out: Array, now: float) -> Decision:
        row, gap = self.board.row(job), self._gap()
        one = self._weigh(np.array([row]), now, self._price(), self._crowding())
        delay = np.where(np.isinf(gap), 0.0, gap)
        toll = np.where(self.board.eligible[row], (one.urgency[0] + one.bend[0] * delay) * delay, inf)
        return self._decision(row, one.duration[0], one.fee[0], toll)

    def _decision(self, row: int, duration: Array, fee: Array, toll: Array) -> Decision:
        value, width = self.board.value[row].copy(), self.board.value_width[row].copy()
        return Decision(
            value, width, duration, fee, toll, SCALE, self._settings.exploration, tuple(self.roster.servers)
        )

    # Learning

    def observe(self, service: Service) -> None:
        if service.features is not None:
            self._check_features(service.features)
            self._make_room(service.features)
        self._pending.append(service)

    def _learn(self, now: float | None) -> None:
        """Learn from what was observed; services whose duration is measured wait for that if there is no time `now`."""
        pending, self._pending = self._pending, []
        for one in pending:
            row, column = self.roster.row(one.job_class), self.roster.column(one.server_class)
            if one.features is not None and not self.learnt.own:
                self._widen(one.features)
            features = self._features(one.job_class, one.features, self.learnt.own)
            if one.reward is not None:
                self._note_features(features)
                self.learnt.value.observe(features, row, column, one.reward, one.weight)
            if one.duration is not None:
                self._learn_duration(features, row, column, one.duration)
            elif one.started is not None and now is None:
                self._pending.append(one._replace(reward=None))
            elif one.started is not None and now is not None and now > one.started:  # else the clock stands still
                self._learn_duration(features, row, column, now - one.started)

    def _learn_duration(self, features: Array, row: int, column: int, duration: float) -> None:
        learnt = self.learnt
        if not learnt.timed:
            learnt.time.begin(log(duration))
            learnt.class_time = np.full_like(learnt.class_time, duration)
        mean, _ = learnt.time.predict(features[None], np.array([row]))
        learnt.smear = learnt.smear * (1.0 - 1.0 / DURATIONS) + (duration, exp(mean[0, column]))
        learnt.time.observe(features, row, column, log(duration))
        learnt.timed = min(learnt.timed + 1.0, DURATIONS)
        learnt.mean_time += (duration - learnt.mean_time) / learnt.timed
        learnt.class_time[column] += (duration - learnt.class_time[column]) / min(learnt.timed, DURATIONS / 4.0)

    def epoch(self, server_class: str) -> int:
        return int(self.learnt.value.epoch[self.roster.column(server_class)])

    def correct(self, service: Service, before: float, epoch: int) -> None:
        assert service.reward is not None
        self._learn(None)
        row, column = self.roster.row(service.job_class), self.roster.column(service.server_class)
        if self.learnt.value.epoch[column] == epoch:  # else what it corrects no longer counts
            features = self._features(service.job_class, service.features, self.learnt.own)
            self.learnt.value.correct(features, row, column, before, service.reward)

    def forget(self, server_class: str) -> None:
        self._learn(None)
        column = self.roster.column(server_class)
        self.learnt.value.forget(column)
        self.learnt.time.forget(column)

    def _features(self, job_class: str, own: Array | None, size: int) -> Array:
        """Return the features of a job: those of its class, then `size` of its own; NaN if it has none."""
        shared = self.roster.job_classes[self.roster.row(job_class)].features
        return np.concatenate([shared, np.full(size, np.nan) if own is None else own])

    def _make_room(self, features: Array | None) -> None:
        """Make room on the board for features of single jobs; from now on all of them have this length."""
        if features is not None and not self.own:
            self.own = features.size
            self.board.widen(features.size)

    def _widen(self, first: Array) -> None:
        """Let the models learn from features of single jobs; jobs without them count as average ones.

        This is part of what was learnt, so it happens with the first observation, not with the first job.
        """
        learnt = self.learnt
        learnt.own, learnt.moments = first.size, np.pad(learnt.moments, ((0, 0), (0, first.size)))
        learnt.value.widen(first)
        learnt.time.widen(first)

    def _note_features(self, features: Array) -> None:
        """Follow mean and spread of the features; standardise by them when their number is a power of two."""
        if not features.size:
            return
        moments, known = self.learnt.moments, ~np.isnan(features)
        moments[0] += known
        away = np.where(known, features - moments[1], 0.0)
        moments[1] += away / np.maximum(moments[0], 1.0)
        moments[2] += away * np.where(known, features - moments[1], 0.0)
        for k in {0, features.size - 1}:  # those of the class, and the job's own
            seen = int(moments[0, k])
            if known[k] and seen >= 8 and not seen & (seen - 1):
                self._standardise()
                break

    def _standardise(self) -> None:
        number, mean, square = self.learnt.moments
        spread = np.sqrt(square / np.maximum(number, 1.0))
        usual = np.where(mean == 0.0, 1.0, np.abs(mean))
        for model in (self.learnt.value, self.learnt.time):
            center = np.where(number > 0.0, mean, model.center[1:])
            model.rescale(
                center, np.where(number > 0.0, np.where(spread > 1e-9 * usual, spread, usual), model.scale[1:])
            )

    # Classes, settings, state

    def set_roster(self, roster: Roster, waiting: list[tuple[Job, Entry]]) -> None:
        before, learnt = self.roster, self.learnt
        rows = [before.jobs.get(name) for name in roster.jobs]
        columns = [before.servers.get(name) for name in roster.servers]
        self._learn(None)
        self._arrange(roster, rows, columns)
        learnt.class_time = np.array([learnt.mean_time if k is None else learnt.class_time[k] for k in columns])
        learnt.crowd, learnt.present = (
            np.array([0.0 if k is None else some[k] for k in columns]) for some in (learnt.crowd, learnt.present)
        )
        self._pending = [
            one for one in self._pending if one.job_class in roster.jobs and one.server_class in roster.servers
        ]
        self.roster, self.board = roster, self.board.rebuilt(len(columns))
        self._deadlines = {}
        for job, entry in waiting:
            self._put(job, entry, first=False)
        self.expected = np.zeros((len(rows), len(columns)))

    def _arrange(self, roster: Roster, rows: list[int | None], columns: list[int | None]) -> None:
        """Arrange the models for other classes. Only changes that matter count, so that a log replays to the same state."""
        learnt, before = self.learnt, self.roster
        if not learnt.value.seen and not learnt.time.seen:
            learnt.value, learnt.time = _new_models(roster)
            return
        same = rows == list(range(len(before.jobs))) and columns == list(range(len(before.servers)))
        if not same or not np.array_equal(_server_features(roster), _server_features(before)):
            for model in (learnt.value, learnt.time):
                model.arrange(rows, columns, _server_features(roster))

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
        if given.keys() & {"target_wait", "V", "percentile"}:
            given = {"target_wait": None, "V": None, "percentile": None} | given
        self._settings = replace(self._settings, **given)
        waits = self.learnt.waits
        waits.target, waits.fixed = self._settings.target_wait, self._settings.V
        waits.percentile = self._settings.percentile
        for row in self.board.rows if "exploration" in given else ():
            self.board.draw[row] = self._draw(int(self.board.serial[row]), self.board.draw.shape[1])

    @property
    def V(self) -> float:
        return self.learnt.waits.V

    def waits(self) -> Waits:
        return self.learnt.waits.status(self.learnt.mean_time)

    def mean_duration(self) -> float:
        return self.learnt.mean_time

    def beliefs(self) -> tuple[Array, Array] | None:
        features = np.array([self._features(name, None, self.learnt.own) for name in self.roster.jobs])
        return self.learnt.value.predict(features, np.arange(len(features)))

    def durations(self) -> Array:
        """Return the expected duration of each pair of classes (I, J)."""
        features = np.array([self._features(name, None, self.learnt.own) for name in self.roster.jobs])
        mean, _ = self.learnt.time.predict(features, np.arange(len(features)))
        return np.asarray(np.exp(mean) * (self.learnt.smear[0] / self.learnt.smear[1]))

    def health(self, unit: float) -> Health | None:
        model = self.learnt.value
        values = 1.0 / np.linalg.eigvalsh(model.long.inverse)
        return Health(model.seen, unit * model.noise**0.5, float(values.min()), float(values.max()))

    def sound(self) -> bool:
        learnt = self.learnt
        numbers = (learnt.value.noise, learnt.time.noise, learnt.mean_time, float(learnt.smear.sum()))
        models = (learnt.value.long.theta, learnt.time.long.theta, learnt.value.mean, learnt.time.mean)
        return all(map(isfinite, numbers)) and all(bool(np.isfinite(one).all()) for one in models)

    def state(self) -> dict[str, Any]:
        pending = [
            [*one[:3], None if one.features is None else one.features.tolist(), *one[4:]] for one in self._pending
        ]
        return {"state": encode(self.learnt), "pending": pending, "arrived": self._arrived, "decided": self._decided}

    def load(self, state: dict[str, Any]) -> None:
        self.learnt = decode(state["state"], self.learnt)
        for model in (self.learnt.value, self.learnt.time):
            model.check()
        self._pending = [
            Service(job, kind, server, None if features is None else np.array(features), *rest)
            for job, kind, server, features, *rest in state["pending"]
        ]
        for known in (np.zeros(self.learnt.own) if self.learnt.own else None, *(one.features for one in self._pending)):
            self._make_room(known)
        self._arrived, self._decided = int(state["arrived"]), float(state["decided"])


def _server_features(roster: Roster) -> Array:
    return np.array([one.features for one in roster.server_classes], dtype=np.float64).reshape(len(roster.servers), -1)


def _new_models(roster: Roster) -> tuple[PairModel, PairModel]:
    """Return models of rewards and of durations that have learnt nothing."""
    I, d, servers = len(roster.jobs), len(roster.job_classes[0].features), _server_features(roster)
    return PairModel.new(I, servers, d, noise=0.5), PairModel.new(I, servers, d, noise=1.0, usual=CAUTIOUS)
