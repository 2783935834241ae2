"""The simulated system: queues, jobs and random numbers of a batch of replications, slot by slot."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bilinq.arrays import Array, BoolArray, IntArray
from bilinq.errors import BadInput
from bilinq.learning import Outcome
from bilinq.problem.instances import Instances
from bilinq.problem.pairs import Pairs
from bilinq.simulation import kernels
from bilinq.simulation.arrivals import Block, Rngs
from bilinq.simulation.rewards import NormalRewards, RewardLaw

T = TypeVar("T", bound=np.generic)
NO_MASK: BoolArray = np.empty((0, 0, 0), np.bool_)  # for kernels, if every pair is eligible


class Tape:
    """Random numbers of each replication in one array: drawn in blocks, used in order; the block size does not matter."""

    def __init__(self, rngs: Rngs, draw: Callable[[np.random.Generator, int], Array]) -> None:
        self._rngs, self._draw = rngs, draw
        self.numbers = np.array([draw(rng, 1024) for rng in rngs])
        self.cursor: IntArray = np.zeros(len(rngs), np.int64)

    def provide(self, count: int, at: int) -> None:
        """Make sure that `count` numbers are left in each replication; `at` is the furthest cursor."""
        length = self.numbers.shape[1]
        if at + count <= length:
            return
        fresh = np.empty((len(self._rngs), max(length, 2 * count)))
        for r, rng in enumerate(self._rngs):
            left = length - self.cursor[r]
            fresh[r, :left] = self.numbers[r, self.cursor[r] :]
            fresh[r, left:] = self._draw(rng, fresh.shape[1] - left)
        self.numbers = fresh
        self.cursor[:] = 0


class World:
    """The changing parts of R replications. Rows of allocations are classes, or places of jobs with `by_job`."""

    def __init__(
        self, instances: Instances, by_job: bool, distinct: bool, geometric: bool, keep_log: bool, service: Rngs,
        reward: Rngs, law: RewardLaw,
    ) -> None:  # fmt: skip
        count, self.classes = instances.arrival_rate.shape
        self.by_job, self.distinct, self.geometric = by_job, distinct, geometric
        self.mean, self.noise = (np.array(array, order="C") for array in (instances.mean_reward, instances.noise))
        by_pair, pairs = instances.service_rate.ndim == 3, instances.pairs
        rate = instances.service_rate if by_pair else instances.service_rate[:, :, None]
        self.rate: Array = np.broadcast_to(rate, self.mean.shape).copy()
        self.pairs = None if pairs.plain else pairs
        self.eligible: BoolArray = NO_MASK if instances.eligible is None else instances.eligible.copy()
        self.queue: IntArray = np.zeros((count, self.classes), np.int64)
        self.job: IntArray = np.zeros((5, count, 0), np.int64)
        self.member: IntArray = np.zeros((count, self.classes, 0), np.int64)
        self.spare: IntArray = np.zeros((count, 0), np.int64)
        self.n_spare: IntArray = np.zeros(count, np.int64)
        self.log: NDArray[np.int32] = np.zeros((count, 4, 64 if keep_log else 0), np.int32)
        self.n_log: IntArray = np.zeros(count, np.int64)
        self.observed: Array = np.zeros(count)
        self.services: IntArray = np.zeros(count, np.int64)
        self._law = None if isinstance(law, NormalRewards) else law  # kernels draw normal rewards themselves
        self._uniform, self._reward = Tape(service, lambda rng, count: rng.random(count)), Tape(reward, law.numbers)
        self._furthest = [0, 0]
        self._make_room(8, 32)

    def arrive(self, slot: int, block: Block, b: int) -> None:
        """Add the jobs of slot `b` of a block."""
        most, total = kernels.crowd(self.queue, block.start, b)
        self._make_room(most, total)
        kernels.arrive(slot, block.start, block.job_class, block.units, b, self.job, self.member, self.spare,
                       self.n_spare, self.queue)  # fmt: skip

    def waiting(self) -> Array:
        """Return the queue for the policy: jobs of each class (R, I), or one for each job's place."""
        if not self.by_job:
            return self.queue.astype(np.float64)
        out = np.empty(self.job.shape[1:])
        kernels.waiting_jobs(self.job, self.member, self.queue, out)
        return out

    def units(self) -> Array | None:
        """Return the units that the waiting jobs of each row still need (R, rows); None if a service may complete a job."""
        if self.geometric:
            return None
        out = np.empty(self.job.shape[1:] if self.by_job else self.queue.shape)
        kernels.units_left(self.job, self.member, self.queue, self.by_job, out)
        return out

    def pairs_of_jobs(self) -> Pairs | None:
        """Return rates and eligible pairs of each job's place, where rows are jobs and pairs differ; None otherwise."""
        return self.pairs.of_jobs(self.job[kernels.CLASS]) if self.by_job and self.pairs else None

    def expected_reward(self, y: Array, waiting: Array, capacity: Array) -> Array:
        """Return sum_ij r_ij y_ij (R,); raise an error if y is not an allocation."""
        out = np.empty(len(y))
        fault = kernels.earn(y, self.mean, self.eligible, self.job, self.by_job, waiting, capacity, out)
        if fault:
            raise BadInput(f"decide must return an allocation that is {kernels.FAULTS[fault]}")
        return out

    def serve(self, slot: int, y: Array, waiting: Array, capacity: Array) -> Outcome:
        """Assign jobs to servers, draw rewards and completions, remove complete jobs; return what was observed."""
        left_over = self.units() if self.distinct else None
        services = waiting if left_over is None else left_over
        picks, total, squares = self._draw(y, services, capacity), np.empty(y.shape), np.empty(y.shape)
        uniform, numbers = self._uniform, self._reward
        most = int(kernels.count_picks(picks, self.services))
        uniform.provide(2 * most, self._furthest[0])
        numbers.provide(most, self._furthest[1])
        first = numbers.cursor.copy()
        self._furthest[:] = kernels.serve(
            slot, picks, self.by_job, self.distinct, self.geometric, self.mean, self.noise, self.rate, self.job,
            self.member, self.queue, uniform.numbers, uniform.cursor, numbers.numbers, numbers.cursor, total, squares,
            self.observed, self.done,
        )  # fmt: skip
        if self._law is not None:
            self._draw_rewards(self._law, picks, first, total, squares)
        left: BoolArray = np.zeros(y.shape[:2], np.bool_)
        longest = kernels.leave(slot, self.done, self.job, self.member, self.spare, self.n_spare, self.queue, left,
                                self.by_job, self.log, self.n_log)  # fmt: skip
        if self.log.shape[2] and longest + self.done.shape[1] > self.log.shape[2]:
            self.log = _wider(self.log, 2 * self.log.shape[2] + self.done.shape[1])
        return Outcome(slot, picks, total, squares, left, waiting, capacity)

    def _draw_rewards(self, law: RewardLaw, picks: IntArray, first: IntArray, total: Array, squares: Array) -> None:
        """Replace the rewards of this slot by those of another law than the normal one, from the same numbers."""
        r, row, j = np.nonzero(picks)
        pair = np.repeat(np.arange(r.size), picks[r, row, j])  # services in the order in which the kernel serves them
        own, ends = r[pair], np.cumsum(self.services)
        number = self._reward.numbers[own, first[own] + np.arange(own.size) - (ends - self.services)[own]]
        i = self.job[kernels.CLASS][r, row] if self.by_job else row
        reward = law.rewards(self.mean[r, i, j][pair], self.noise[r, i, j][pair], number)
        total[r, row, j] = np.bincount(pair, reward, r.size)
        squares[r, row, j] = np.bincount(pair, reward**2, r.size)
        self.observed[:] = np.bincount(own, reward, len(self.observed))

    def _draw(self, y: Array, services: Array, capacity: Array) -> IntArray:
        """Return how many servers of each class serve each row, of which distinct draws give it at most `services`."""
        from bilinq.assignment.kernels import draw_distinct, draw_independent

        tape, picks = self._uniform, np.empty(y.shape, np.int64)
        draw, limit = (draw_distinct, services) if self.distinct else (draw_independent, capacity)
        while True:
            cursor = tape.cursor.copy()
            at = draw(y, limit, tape.numbers, cursor, picks)
            if at >= 0:
                tape.cursor[:] = cursor
                self._furthest[0] = at
                return picks
            tape.provide(tape.numbers.shape[1] + 1, int(tape.cursor.max()))

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
            for r, free in enumerate(self.n_spare):
                self.spare[r, fresh.size : fresh.size + free] = self.spare[r, :free].copy()
                self.spare[r, : fresh.size] = fresh  # at the bottom: use must not depend on other replications
            self.n_spare += fresh.size
            if self.log.shape[2]:
                self.log = _wider(self.log, self.log.shape[2] + size + 1)
            self.done: IntArray = np.zeros((len(self.queue), size + 1), np.int64)


def _wider(array: NDArray[T], size: int) -> NDArray[T]:
    """Return `array` with its last axis grown to `size`."""
    wide = np.zeros((*array.shape[:-1], size), array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide
