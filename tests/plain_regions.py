"""Regions that compute an allocation together; each knows only its own classes and the bytes that it receives."""

from collections import deque

import numpy as np
from bench.scale.regions import REGIONS, homes

from bilinq.arrays import Array
from bilinq.distributed import System, start_rates
from bilinq.distributed.network import SEED
from bilinq.distributed.system import Nodes

Bundle = dict[tuple[int, int], bytes]
"""The messages of a round, by sender and receiver."""


class Region:
    """The classes of one region: `mine` compute rates with all of the other kind, `asked` are computed with.

    Job nodes compute for their job classes and ask server classes; server nodes the other way round.
    """

    def __init__(self, system: System, gain: Array, place: int, delay: int, nodes: Nodes) -> None:
        self.by_job, self.place, self.system = nodes == "job", place, system
        rates, cost, step = (
            value if self.by_job else value.T for value in (start_rates(system), system.cost, gain)
        )  # fmt: skip
        self.homes = [np.flatnonzero(homes(rates.shape[1]) == g) for g in range(REGIONS)]
        mine = np.flatnonzero(homes(rates.shape[0]) == place)
        self.asked = self.homes[place]
        self.y, self.cost, self.step, self.mine = rates[mine], cost[mine], step[mine], mine
        self.low = SEED * float((system.demand[:, None] / system.cost).min())
        self.answers = np.array([self._answer(g, rates[:, g].sum()) for g in range(rates.shape[1])])
        self.outside = deque([self._sums()[1]] * (2 * delay))

    def messages(self) -> dict[int, bytes]:
        """Return the messages to the others: sums of rates for their classes, followed by the answers of our own classes."""
        sums = self.y.sum(axis=0)
        others = (g for g in range(REGIONS) if g != self.place)
        return {g: np.concatenate([sums[self.homes[g]], self.answers[self.asked]]).tobytes() for g in others}

    def receive(self, messages: dict[int, bytes]) -> None:
        """Receive messages, and compute the answers of our own classes."""
        sums = self.y[:, self.asked].sum(axis=0)
        for g, message in messages.items():
            numbers = np.frombuffer(message)
            sums = sums + numbers[: len(self.asked)]
            self.answers[self.homes[g]] = numbers[len(self.asked) :]
        for j, value in zip(self.asked, sums, strict=True):
            self.answers[j] = self._answer(int(j), float(value))

    def step_on(self) -> None:
        """Compute the next rates by the scaled rule, with our own sums as old as the answers to them."""
        near, outside = self._sums()
        self.outside.append(outside)
        known = near + self.outside.popleft()
        a, n = self.system.demand, self.system.capacity
        if self.by_job:
            used = (self.answers + self.cost) * (known / a[self.mine])[:, None]
        else:
            used = (self.system.penalty.price(known, n[self.mine])[:, None] + self.cost) * self.answers
        self.y = np.maximum(self.y + self.step * np.maximum(self.y, self.low) * (1.0 - used), 0.0)

    def _sums(self) -> tuple[Array, Array]:
        """Return the sums of rates within the region and to other regions."""
        near = self.y[:, self.asked].sum(axis=1)
        return near, self.y.sum(axis=1) - near

    def _answer(self, j: int, sum_: float) -> float:
        """Return the answer of class j to the sum of the rates that are sent to it."""
        if self.by_job:
            return float(self.system.penalty.price(np.array(sum_), self.system.capacity[j]))
        return sum_ / float(self.system.demand[j])


def play(system: System, gain: Array, rounds: int, delay: int, nodes: Nodes) -> tuple[Array, Bundle]:
    """Return the rates (I, J) after `rounds` rounds, and the messages of the last one."""
    places = [Region(system, gain, g, delay, nodes) for g in range(REGIONS)]
    in_transit = deque([{(g, h): text for g in range(REGIONS) for h, text in places[g].messages().items()}] * delay)
    for _ in range(rounds):
        arrived = in_transit.popleft()
        for g, region in enumerate(places):
            region.receive({h: arrived[h, g] for h in range(REGIONS) if h != g})
        sent: Bundle = {(g, h): text for g in range(REGIONS) for h, text in places[g].messages().items()}
        in_transit.append(sent)
        for region in places:
            region.step_on()
    rates = np.concatenate([region.y for region in places])
    return (rates if nodes == "job" else rates.T), {ends: text for ends, text in sent.items() if text}
