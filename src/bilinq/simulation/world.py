"""The simulated system: queues, jobs and random numbers of a batch of replications, moved slot by slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.assignment import draws_needed
from bilinq.instances import Instances
from bilinq.learning import Outcome
from bilinq.simulation import kernels
from bilinq.simulation.arrivals import Block

T = TypeVar("T", bound=np.generic)


class Tape:
    """Random numbers of each replication in one array: drawn ahead in blocks, used in order, whatever the block size."""

    def __init__(self, rngs: Sequence[np.random.Generator], need: int, normal: bool) -> None:
        self._draws = [rng.standard_normal if normal else rng.random for rng in rngs]
        self.need = need
        self.numbers = np.empty((len(rngs), max(4096, 3 * need)))
        self.cursor = np.full(len(rngs), self.numbers.shape[1])

    def refill(self, at: int) -> None:
        """Draw anew if fewer than `need` numbers are left somewhere; `at` is the furthest cursor."""
        if at + self.need <= self.numbers.shape[1]:
            return
        for r, draw in enumerate(self._draws):
            used = self.cursor[r]
            self.numbers[r, : self.numbers.shape[1] - used] = self.numbers[r, used:]
            self.numbers[r, self.numbers.shape[1] - used :] = draw(used)
        self.cursor[:] = 0


class World:
    """Everything that moves in R replications. Rows of allocations are classes, or places of jobs with `by_job`."""

    def __init__(
        self,
        instances: Instances,
        by_job: bool,
        distinct: bool,
        geometric: bool,
        keep_log: bool,
        service: Sequence[np.random.Generator],
        reward: Sequence[np.random.Generator],
    ) -> None:
        count, self.classes = instances.arrival_rate.shape
        self.by_job, self.distinct, self.geometric = by_job, distinct, geometric
        self.mean = np.ascontiguousarray(instances.mean_reward)
        self.noise = np.ascontiguousarray(instances.noise)
        self.rate = np.ascontiguousarray(instances.service_rate)
        self.columns = instances.servers.shape[1]
        self.queue: IntArray = np.zeros((count, self.classes), np.int64)
        self.job: IntArray = np.zeros((5, count, 0), np.int64)
        self.member: IntArray = np.zeros((count, self.classes, 0), np.int64)
        self.spare: IntArray = np.zeros((count, 0), np.int64)
        self.n_spare: IntArray = np.zeros(count, np.int64)
        self.log: NDArray[np.int32] = np.zeros((count, 4, 64 if keep_log else 0), np.int32)
        self.n_log: IntArray = np.zeros(count, np.int64)
        self.observed: Array = np.zeros(count)
        self._uniform, self._normal = Tape(service, 0, normal=False), Tape(reward, 0, normal=True)
        self._streams = service, reward
        self._most_servers: Array = np.zeros(instances.servers.shape)
        self._make_room(8, 32)

    def arrive(self, slot: int, block: Block, b: int) -> None:
        """Let the jobs of slot `b` of a block in."""
        most, total = kernels.crowd(self.queue, block.start, b)
        self._make_room(most, total)
        kernels.arrive(slot, block.start, block.job_class, block.units, b, self.job, self.member, self.spare,
                       self.n_spare, self.queue)  # fmt: skip

    def waiting(self) -> Array:
        """Return what a policy sees as its queue: jobs of each class (R, I), or one for each job's place."""
        if not self.by_job:
            return self.queue.astype(np.float64)
        out = np.empty(self.job.shape[1:])
        kernels.waiting_jobs(self.job, self.member, self.queue, out)
        return out

    def expected_reward(self, y: Array) -> Array:
        """Return sum_ij r_ij y_ij (R,)."""
        out = np.empty(len(y))
        kernels.earn(y, self.mean, self.job, self.by_job, out)
        return out

    def serve(self, slot: int, y: Array, waiting: Array, capacity: Array) -> Outcome:
        """Assign jobs to servers, draw rewards and completions, let complete jobs leave; return what was seen."""
        from bilinq.assignment_kernels import draw_distinct, draw_independent

        uniform, normal = self._uniform, self._normal
        picks, total, squares = np.empty(y.shape, np.int64), np.empty(y.shape), np.empty(y.shape)
        if self.distinct:
            draw_distinct(y, waiting, uniform.numbers, uniform.cursor, picks)
        else:
            draw_independent(y, capacity, uniform.numbers, uniform.cursor, picks)
        used, used_normal = kernels.serve(
            slot, picks, self.by_job, self.distinct, self.geometric, self.mean, self.noise, self.rate, self.job,
            self.member, self.queue, uniform.numbers, uniform.cursor, normal.numbers, normal.cursor, total, squares,
            self.observed, self.done,
        )  # fmt: skip
        uniform.refill(used)
        normal.refill(used_normal)
        left: BoolArray = np.zeros(y.shape[:2], np.bool_)
        longest = kernels.leave(slot, self.done, self.job, self.member, self.spare, self.n_spare, self.queue, left,
                                self.by_job, self.log, self.n_log)  # fmt: skip
        if self.log.shape[2] and longest + self.done.shape[1] > self.log.shape[2]:
            self.log = _wider(self.log, 2 * self.log.shape[2] + self.done.shape[1])
        return Outcome(slot, picks, total, squares, left)

    def wind(self, capacity: Array) -> None:
        """Make sure that the tapes hold what one slot with up to `capacity` (R, J) servers may take."""
        self._most_servers = np.maximum(self._most_servers, capacity)
        need = 2 * draws_needed(self._most_servers, self.job.shape[2] if self.by_job else self.classes)
        if need > self._uniform.need:
            self._uniform = _longer(self._uniform, self._streams[0], 2 * need, normal=False)
            self._normal = _longer(self._normal, self._streams[1], 2 * need, normal=True)

    def _make_room(self, most: int, total: int) -> None:
        """Grow the tables so that a class may have `most` members and a replication `total` jobs."""
        ranks, places = self.member.shape[2], self.job.shape[2]
        if most > ranks:
            self.member = _wider(self.member, max(most, 2 * ranks))
        if total > places:
            size = max(total, 2 * places)
            self.job = _wider(self.job, size)
            self.spare = _wider(self.spare, size)
            fresh = np.arange(size - 1, places - 1, -1)
            for r in range(len(self.spare)):
                self.spare[r, self.n_spare[r] : self.n_spare[r] + fresh.size] = fresh
            self.n_spare += fresh.size
            self.done: IntArray = np.zeros((len(self.queue), size + 1), np.int64)
            if self.by_job:
                self.wind(self._most_servers)


def _wider(array: NDArray[T], size: int) -> NDArray[T]:
    """Return `array` with its last axis grown to `size`."""
    wide = np.zeros((*array.shape[:-1], size), array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide


def _longer(tape: Tape, rngs: Sequence[np.random.Generator], need: int, normal: bool) -> Tape:
    """Return a tape that holds more numbers and goes on with those left on the old one."""
    longer = Tape(rngs, need, normal)
    for r in range(len(rngs)):
        left = tape.numbers[r, tape.cursor[r] :]
        longer.cursor[r] -= left.size
        longer.numbers[r, longer.cursor[r] :] = left
    longer.refill(longer.numbers.shape[1])
    return longer
