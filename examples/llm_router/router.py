"""The router: from a request to an answer of the back end that suits it, and to what is learnt from it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from bilinq import Policy

from .answer import CHARACTERS, Answer
from .backend import Backend, HttpBackend
from .config import Config
from .dispatcher import Dispatcher
from .errors import Failed, no_backend
from .events import DONE
from .judge import Judge, by_form, find_judge
from .kind import Kind, classify, length
from .ticket import Ticket
from .worth import LEAST

log = logging.getLogger("llm_router")


class Out(Protocol):
    """Where an answer goes; `begun` tells whether the client has seen any of it."""

    begun: bool

    async def send(self, data: bytes, backend: str) -> None:
        """Send a part that a back end has answered."""
        ...


class Router:
    """Back ends behind a dispatcher.

    Parameters
    ----------
    config : Config
    backends : mapping from name to Backend, optional
        In place of those at the addresses of the cards.
    judge : Judge, optional
        In place of the one that the settings name.
    policy : Policy, optional
        In place of the one that learns.
    seed : int
    """

    def __init__(
        self,
        config: Config,
        backends: Mapping[str, Backend] | None = None,
        judge: Judge | None = None,
        policy: Policy | None = None,
        seed: int = 0,
    ) -> None:
        self.config = config
        self.cards = {card.name: card for card in config.backend}
        self._judge: Judge = judge or (find_judge(config.judge) if config.judge else by_form)
        self._backends = backends or {card.name: HttpBackend(card) for card in config.backend}
        self.dispatcher = Dispatcher(
            config.backend, config.weight, target_wait=config.target_wait, slot=config.slot, backlog=config.backlog,
            policy=policy, seed=seed,
        )  # fmt: skip
        self._judging: set[asyncio.Task[None]] = set()

    async def answer(self, tenant: str, body: dict[str, Any], out: Out) -> None:
        """Send the answer to a request to `out`; a back end that fails is followed by another one.

        Raises
        ------
        ApiError
            If too many requests wait, the request is wrong, or no back end can answer. `out` may have begun by then.
        """
        kind = classify(body)
        allowed, tried = self._allowed(body, kind), set[str]()
        while True:
            ticket = Ticket(tenant, kind, allowed, again=bool(tried))
            await self.dispatcher.place(ticket)
            assert ticket.backend is not None
            try:
                return await self._serve(ticket, ticket.backend, body, out)
            except Failed as error:
                log.warning("back end %s failed: %s", ticket.backend, error)
                tried.add(ticket.backend)
                allowed = (allowed or frozenset(self.cards)) - tried
                if out.begun or not allowed or len(tried) >= self.config.attempts:
                    raise no_backend(str(error)) from None

    async def close(self) -> None:
        """Finish what is being judged, and close connections."""
        await asyncio.gather(*self._judging)
        await asyncio.gather(*(backend.close() for backend in self._backends.values()))

    def _allowed(self, body: Mapping[str, Any], kind: Kind) -> frozenset[str] | None:
        """Return the back ends that a request may go to: those of the model it names, and fit for it; None if all are."""
        cards, model = self.config.backend, body.get("model")
        named = [card for card in cards if model in (card.name, card.model)] or cards
        able = [card for card in named if card.tools or not kind.tools] or named
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or 0
        needed = length(body) / CHARACTERS + wanted
        longest = max(card.context for card in able)
        fit = [card for card in able if card.context >= min(needed, longest)]
        return None if len(fit) == len(cards) else frozenset(card.name for card in fit)

    async def _serve(self, ticket: Ticket, name: str, body: dict[str, Any], out: Out) -> None:
        """Let the back end of a ticket answer, and free its slot."""
        answer, clock, took = Answer(), asyncio.get_running_loop().time, None
        began = clock()
        try:
            async with contextlib.aclosing(self._backends[name].ask(body)) as parts:
                async for data in parts:
                    answer.take(data)
                    came = clock()
                    await out.send(data, name)
                    began += clock() - came  # a slow client is not the back end's fault
            if body.get("stream") and not answer.ended:
                if answer.finish_reason is None:
                    raise Failed("the stream ended early")
                await out.send(DONE, name)
            answer.seconds = took = clock() - began
            self.dispatcher.worked(ticket)
        except Failed as error:
            self.dispatcher.failed(ticket, error.retry_after)
            self.dispatcher.learn(ticket, LEAST)
            raise
        finally:
            self.dispatcher.leave(ticket, took)
        self._spawn(self._learn(ticket, body, answer))

    async def _learn(self, ticket: Ticket, body: Mapping[str, Any], answer: Answer) -> None:
        """Have an answer judged, and learn from it."""
        assert ticket.backend is not None
        price = self.cards[ticket.backend].price(*answer.tokens(body))
        try:
            score = self._judge(body, answer)
            score = await score if inspect.isawaitable(score) else score
            self.dispatcher.learn(ticket, self.config.worth.reward(score, answer.seconds, price))
        except Exception:
            log.exception("the judge failed; nothing is learnt from this answer")

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)
