"""The gateway: from a request to the answer of the back end that suits it, and to what is learnt from it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

from bilinq.arrays import Array
from bilinq.errors import BadInput, Unavailable
from bilinq.gateway.answer import DONE, Answer
from bilinq.gateway.backend import Upstream
from bilinq.gateway.budget import Budgets, day_of
from bilinq.gateway.config import Config, Endpoint
from bilinq.gateway.dispatcher import LEAST_DURATION, Dispatcher, Ticket
from bilinq.gateway.errors import ApiError, BackendFailed, BackendRefused, all_failed, broken_off, too_late
from bilinq.gateway.features import Features, call, find_function, kind_of
from bilinq.gateway.journal import Journal
from bilinq.gateway.learnt import checkpoint, restore
from bilinq.gateway.meters import GatewayMeters
from bilinq.gateway.record import Record, Records, why
from bilinq.gateway.request import Request
from bilinq.gateway.rules import Rules
from bilinq.gateway.sessions import Sessions
from bilinq.gateway.worth import Judge, Means, Parts, by_form, check_score

log = logging.getLogger("bilinq.gateway")

USUAL = 50.0  # requests over which the features of a kind are averaged
STORE = 5.0  # seconds in which a reservation must be stored


class Out(Protocol):
    """Where an answer goes."""

    begun: bool

    async def send(self, data: bytes, backend: str) -> None:
        """Send a whole answer, or an event of a stream."""


class Asked(Protocol):
    """What answers for a back end: `Upstream`, or something without a network."""

    def ask(self, endpoint: Endpoint, body: dict[str, Any]) -> AsyncGenerator[bytes]:
        """Yield the answer, whole or in events."""

    async def close(self) -> None:
        """Close connections."""


class Gateway:
    """Answers requests, and learns from the answers.

    Parameters
    ----------
    config : Config
    judge : function, optional
        In place of the one that the settings name.
    now, clock : functions that return the seconds since 1970, and seconds that never jump
        The event loop's own clock has a resolution of a millisecond, which is too coarse.
    """

    def __init__(
        self,
        config: Config,
        judge: Judge | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self._now, self._clock = config, now, clock
        named = None if config.judge is None else find_function("judge", config.judge)
        self._judge = judge or named
        self.features = Features(config.embedding)
        self.upstreams: dict[str, Asked] = {one.name: Upstream(one) for one in config.backend}
        self.journal = Journal(config.database)
        limits = {name: None if one is None else one.budget for name, one in config.tenants.items()}
        self.budgets = Budgets(limits, now)
        self.sessions = Sessions({one.name: one for one in config.backend}, config.worth, self._clock)
        self.rules = Rules(config, self.budgets, self.sessions)
        self.told = Means(1.0)  # quality as judges and users see it
        self.means = {
            "told": self.told, "output": self.rules.output, "cached": self.sessions.cached, "tried": self.rules.tried,
        }  # fmt: skip
        scheduler = restore(self.journal, config, self.features.signature, self.means)
        self.dispatcher = Dispatcher(config, scheduler, clock)
        self.rules.find_new()
        for tenant, spent in self.journal.spent(day_of(now())).items():
            self.budgets.load(tenant, day_of(now()), spent)
        self.records, self.meters = Records(self.journal), GatewayMeters()
        self.usual: dict[str, Array] = {}  # mean features of each kind, for the page
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawn(self._checkpoints())

    async def close(self) -> None:
        """Let judges end, save what was learnt, and close connections."""
        judging = [task for task in self._tasks if task.get_name() == "judge"]
        if judging:
            await asyncio.wait(judging, timeout=5.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.save()
        await self.journal.close()
        for upstream in self.upstreams.values():
            await upstream.close()

    def save(self) -> None:
        """Write a checkpoint of what was learnt."""
        checkpoint(self.journal, self.dispatcher.scheduler, self.features.signature, self.means)

    # A request

    async def answer(self, request: Request, out: Out) -> None:
        """Answer a request: the first byte must be sent before its deadline."""
        if request.deadline is None:
            return await self._answer(request, out, lambda: None)
        try:
            async with asyncio.timeout(request.deadline) as limit:
                return await self._answer(request, out, lambda: _lift(limit))
        except TimeoutError:
            raise too_late(request.deadline) from None

    async def _answer(self, request: Request, out: Out, begun: Callable[[], None]) -> None:
        """Try back ends, one after the other, until one has begun to answer."""
        came, kind, failed = self._clock(), kind_of(request), dict[str, str]()
        features = await self.features.embedded(request) if self.features.slow else self.features.quick(request)
        if features is not None:
            before = self.usual.get(kind, features)
            self.usual[kind] = before + (features - before) / USUAL if before.size == features.size else features
        for attempt in range(self.config.attempts):
            servers = tuple(name for name in self.rules.eligible(request) if name not in failed)
            if not servers:
                break
            ticket = self._ticket(request, attempt, kind, features, servers, came)
            shadow = self._shadow(ticket) if self.config.shadow else {}
            name = await self.dispatcher.place(ticket)
            try:
                return await self._attempt(request, ticket, attempt, shadow, out, begun)
            except BackendFailed as error:
                failed[name] = str(error)
                if out.begun:
                    raise broken_off(str(error)) from None
        raise all_failed(failed)

    def _ticket(
        self, request: Request, attempt: int, kind: str, features: Array | None, servers: tuple[str, ...], came: float
    ) -> Ticket:
        return Ticket(
            job=f"{request.id} {attempt}", tenant=request.tenant, kind=kind, features=features, servers=servers,
            cost=self.rules.cost(request, kind, servers), came=came, again=attempt > 0,
        )  # fmt: skip

    def _shadow(self, ticket: Ticket) -> dict[str, Any]:
        """Restrict a request to the least busy back end, and return what the scheduler would have done instead."""
        advice = self.dispatcher.advise(ticket.kind, ticket.features, ticket.servers, ticket.cost)
        plain = min(ticket.servers, key=self.dispatcher.share)
        ticket.servers = (plain,)
        values = {one.server_class: one for one in advice.options}
        best = advice.options[0].server_class
        return {
            "would": best, "did": plain, "gain": values[best].value - values[plain].value,
            "error": 0.0 if best == plain else (values[best].uncertainty ** 2 + values[plain].uncertainty ** 2) ** 0.5,
        }  # fmt: skip

    async def _attempt(
        self,
        request: Request,
        ticket: Ticket,
        attempt: int,
        shadow: dict[str, Any],
        out: Out,
        begun: Callable[[], None],
    ) -> None:
        """Let the back end of a ticket answer; settle what it cost, and free its place."""
        record, reserved = await self._reserved(request, ticket, attempt, shadow)
        answer = Answer()
        try:
            await self._pass_on(request, record, answer, out, begun)
        except BackendFailed as error:
            self._settle(request, record, reserved, answer, "failed", str(error))
            if error.busy is None:
                self._failed(ticket, record, str(error))
            else:
                self.dispatcher.busy(ticket, error.busy, str(error))
            raise
        except BaseException as error:
            state = "refused" if isinstance(error, BackendRefused) else "left"
            self._settle(request, record, reserved, answer, state, "")
            self.dispatcher.left(ticket)
            raise
        self._settle(request, record, reserved, answer, "done", "")
        self._learn(request, ticket, record, answer)

    async def _reserved(
        self, request: Request, ticket: Ticket, attempt: int, shadow: dict[str, Any]
    ) -> tuple[Record, float]:
        """Reserve money, and write the request to the log before it is sent; for a tenant with a budget, wait for that."""
        assert ticket.backend is not None
        amount = self.rules.reserve(request, self.rules.backends[ticket.backend])
        day = self.budgets.reserve(request.tenant, amount)
        if day is None:
            self.dispatcher.left(ticket)
            raise self.rules.over_budget(request.tenant)
        features = None if ticket.features is None else ticket.features.tolist()
        record = Record(
            id=request.id, attempt=attempt, tenant=request.tenant, kind=ticket.kind, backend=ticket.backend, at=self._now(),
            day=day, cost=amount, features=features, waited=ticket.waited, why=why(ticket.decision), tokens=[],
            shadow=shadow,
        )  # fmt: skip
        self.records.add(record)
        self.rules.tried.add(record.backend, record.kind, 1.0)
        row = record.row(self.config.worth)
        if self.budgets.limit(request.tenant) is None:
            self.journal.write(row)
            return record, amount
        try:
            await self.journal.write_through(row, STORE)
        except BaseException as error:
            self.budgets.settle(request.tenant, day, amount, 0.0)
            self.dispatcher.left(ticket)
            if isinstance(error, Unavailable):
                raise ApiError(503, f"{error}; try again", type="server_error", code="log_unavailable") from None
            raise
        return record, amount

    async def _pass_on(
        self, request: Request, record: Record, answer: Answer, out: Out, begun: Callable[[], None]
    ) -> None:
        """Send the parts of an answer on as they come, and time them."""
        body, backend = request.body, self.rules.backends[record.backend]
        options = body.get("stream_options") or {}
        if request.stream and backend.stream_usage and isinstance(options, dict) and not options.get("include_usage"):
            body, answer.hide_usage = {**body, "stream_options": {**options, "include_usage": True}}, True
        began, ended, whole = self._clock(), not request.stream, b""
        async with contextlib.aclosing(self.upstreams[record.backend].ask(request.endpoint, body)) as parts:
            async for data in parts:
                came = self._clock()
                if data == DONE:
                    ended = True
                else:
                    data = answer.take(data, request.id)
                if not data:
                    continue
                if not out.begun:
                    answer.first = came - began
                if not request.stream:
                    whole = data
                    continue
                if not out.begun:
                    begun()
                answer.seconds = came - began
                await out.send(data, record.backend)
                began += self._clock() - came  # a slow client is not the back end's fault
        if not ended:
            if answer.finish_reason is None:
                raise BackendFailed("the stream ended early")
            await out.send(DONE, record.backend)
        answer.seconds = max(self._clock() - began, LEAST_DURATION)
        if (
            not request.stream
        ):  # the last thing to wait for: a complete response ends the connection's interest in this task
            begun()
            await out.send(whole, record.backend)

    def _settle(
        self, request: Request, record: Record, reserved: float, answer: Answer, state: str, error: str
    ) -> None:
        """Replace the reservation by what an attempt has cost."""
        prompt, made, cached = answer.tokens(request)
        if state != "done" and not made:
            prompt = cached = 0.0
        record.cost = self.rules.backends[record.backend].price(prompt, made, cached)
        record.tokens, record.state, record.error = [prompt, made, cached], state, error
        self.budgets.settle(request.tenant, record.day, reserved, record.cost)
        self.meters.attempt(record, answer)
        if state != "done":
            self.journal.write(record.row(self.config.worth))

    # Learning

    def _learn(self, request: Request, ticket: Ticket, record: Record, answer: Answer) -> None:
        """Learn from an answer: at once by rules, or later if there is a judge."""
        prompt, made, _ = record.tokens
        self.rules.output.add(record.backend, record.kind, made)
        self.sessions.note(request, record.backend, prompt, answer.cached)
        score = by_form(request.body, answer)
        source = "rules"
        if score == 1.0 and self.told.known(record.backend):
            score, source = self.told.get(record.backend, record.kind), "filled"
        record.parts = Parts(
            quality=score, source=source, price=record.cost, seconds=answer.seconds, first=answer.first
        )
        scheduler = self.dispatcher.scheduler
        record.epoch = scheduler.epoch(record.backend)
        record.reward = None if self._judge else record.parts.reward(self.config.worth)
        self.dispatcher.done(ticket, record.reward, answer.seconds)
        self.journal.learn(record.id, record.observed(record.reward, answer.seconds))
        self.journal.write(record.row(self.config.worth))
        if self._judge is None:
            self.meters.worth(record)
        else:
            self._spawn(self._judged(self._judge, request, record, answer), "judge")

    async def _judged(self, judge: Judge, request: Request, record: Record, answer: Answer) -> None:
        """Have an answer judged, and learn from it; without a score, what rules say counts."""
        try:
            score = await call(judge, request.body, answer)
            found = None if score is None else check_score("the score of a judge", score)
        except Exception as error:
            log.warning("the judge failed; rules count for this answer", extra={"reason": repr(error)[:200]})
            found = None
        if record.reward is not None:
            return  # feedback was faster
        assert record.parts is not None
        self._rate(record, record.parts if found is None else replace(record.parts, quality=found, source="judge"))

    def _rate(self, record: Record, parts: Parts) -> None:
        """Learn the reward of an answer, for the first time or as a correction."""
        before, record.parts, record.reward = record.reward, parts, parts.reward(self.config.worth)
        if parts.source in ("judge", "feedback"):
            self.told.add(record.backend, record.kind, parts.quality)
        if before != record.reward:
            observation = record.observed(record.reward, before=before)
            if record.backend in self.rules.backends:
                self.dispatcher.scheduler.replay([observation])
                self.journal.learn(record.id, observation)
        self.meters.worth(record)
        self.journal.write(record.row(self.config.worth))

    def feedback(self, record: Record, score: float, said: dict[str, Any]) -> None:
        """Learn from feedback to an answer; the same again changes nothing, another one replaces it."""
        if record.parts is None:
            raise BadInput(f"id must be that of an answer; {record.id} was {record.state}")
        self.journal.feedback(record.id, said)
        if record.parts.source != "feedback" or record.parts.quality != score:
            self._rate(record, replace(record.parts, quality=score, source="feedback"))
        self.records.add(record)

    def _failed(self, ticket: Ticket, record: Record, reason: str) -> None:
        self.dispatcher.failed(ticket, reason)
        self.journal.learn(record.id, record.observed(None)._replace(failed=True))
        log.warning("a back end failed", extra={"backend": record.backend, "reason": reason, "request": record.id})

    # In the background

    def _spawn(self, work: Coroutine[Any, Any, None], name: str = "background") -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self.config.checkpoint_every)
            self.save()


def _lift(limit: asyncio.Timeout) -> None:
    """End a limit of time, unless it has just passed: then the next wait ends by it, before anything is sent."""
    with contextlib.suppress(RuntimeError):
        limit.reschedule(None)
