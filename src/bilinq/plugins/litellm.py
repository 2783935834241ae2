"""A routing strategy for LiteLLM's Router and proxy: `BilinqRouting`.

LiteLLM lists the deployments that may serve a request (health, cooldowns, tags, context lengths), and the strategy chooses
one of them. It learns from LiteLLM's callbacks what each attempt cost, how long it took and whether it failed, and later
from feedback what it was worth. A request waits for a better deployment at most `patience` seconds; `request_queue` says
why.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import log1p
from threading import Lock, Thread
from typing import Any, NamedTuple
from uuid import uuid4

from bilinq import texts
from bilinq.arrays import count, non_negative, scalar
from bilinq.errors import BadInput, BilinqError
from bilinq.plugins.places import Server
from bilinq.plugins.request_queue import OTHER, Counts, RequestQueue

LOG = logging.getLogger("bilinq.plugins")
MARK = "bilinq"  # the key of a request's metadata: a list of [strategy, deployment, number], one for each attempt
NOT_ITS_FAULT = {400, 413, 422}  # statuses of requests that no deployment could have served

Features = Callable[[str, Mapping[str, Any]], Sequence[float] | None]
Judge = Callable[[Mapping[str, Any], Any], float | None]


def text_features(text: str, request: Mapping[str, Any]) -> list[float]:
    """Return `bilinq.text_features` of a text, whether the request has tools, and how long the answer may be."""
    longest = request.get("max_tokens") or request.get("max_completion_tokens") or 0
    return [*texts.text_features(text), float(bool(request.get("tools"))), log1p(longest)]


class _Answer(NamedTuple):
    """A request that was answered: its number, and what is subtracted from its quality."""

    request: int
    spent: float


class BilinqRouting:
    """Routes the requests of a LiteLLM Router by bilinq's scheduler, and learns from their outcomes.

    The reward of an answer is quality - dollar * cost - second * latency. Quality is what `judge` returns, or 1 without
    one, and then what `feedback` says. A failure has the reward -1.

    Parameters
    ----------
    dollar : float
        Quality that a dollar is worth.
    second : float
        Quality that a second of latency is worth.
    judge : callable, optional
        Returns the quality of an answer, from 0 to 1, given LiteLLM's keyword arguments of the call and the response;
        None if only feedback will tell.
    features : callable, optional
        Returns numbers that describe a request, given its text and LiteLLM's keyword arguments, always as many.
    places : int
        Requests that a deployment without `max_parallel_requests` serves at a time.
    keep : int
        How many answers can get feedback.
    **settings
        Arguments of `RequestQueue` and of `bilinq.Scheduler`: `patience`, `lifetime`, `target_wait`, `seed`, `snapshot`.

    Attributes
    ----------
    queue : RequestQueue
    callback : litellm.integrations.custom_logger.CustomLogger
        What LiteLLM calls; `attach` registers it. In the settings of the proxy it is one of the `callbacks`, and it attaches
        the strategy to the proxy's router at the first request.
    """

    def __init__(
        self,
        *,
        dollar: float = 10.0,
        second: float = 0.01,
        judge: Judge | None = None,
        features: Features = text_features,
        places: int = 100,
        keep: int = 10_000,
        **settings: Any,
    ) -> None:
        self._dollar, self._second = (
            scalar(name, value, non_negative) for name, value in (("dollar", dollar), ("second", second))
        )
        self._judge, self._make_features = judge, features
        self._places, self._keep = count("places", places), count("keep", keep, least=0)
        self.queue = RequestQueue(reward=(-1.0, 1.0), keep=keep, **settings)
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._name = uuid4().hex  # marks its attempts
        self._lock = Lock()
        self._router: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.callback = _callback(self)

    def attach(self, router: Any) -> BilinqRouting:
        """Route the requests of a `litellm.Router` from now on; return the strategy."""
        if not hasattr(router, "register_plugin"):
            raise BadInput(f"router must be a litellm.Router of version 1.109 or later; got {type(router).__name__}")
        self._router = router
        router.register_plugin(self)
        _litellm("litellm").logging_callback_manager.add_litellm_callback(self.callback)
        return self

    @property
    def counts(self) -> Counts:
        """How requests got their deployments."""
        return self.queue.counts

    def feedback(self, response_id: str, quality: float) -> bool:
        """Say what an answer was worth, from 0 to 1, by the id of the response; return whether it is known.

        The same again counts once; another value corrects the first.
        """
        value = scalar("quality", quality)
        if not 0.0 <= value <= 1.0:
            raise BadInput(f"quality must be from 0 to 1; got {value:g}")
        with self._lock:
            answer = self._answers.get(response_id)
        return answer is not None and self.queue.reward(answer.request, value - answer.spent)

    # What LiteLLM calls: the two methods of its CustomRoutingStrategyBase

    async def async_get_available_deployment(
        self,
        model: str,
        messages: list[dict[str, str]] | None = None,
        input: str | list[Any] | None = None,
        specific_deployment: bool | None = False,
        request_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Return the deployment for a request, after a bounded wait; LiteLLM raises if none is healthy."""
        request = {} if request_kwargs is None else request_kwargs
        healthy = await self._router.select(
            model, request, kind="healthy", messages=messages, input=input, specific_deployment=specific_deployment
        )
        if isinstance(healthy, dict):  # the caller named a deployment
            return healthy
        found = {str(one["model_info"]["id"]): one for one in healthy}
        features = self.queue.call("features", self._make_features, _text(messages, input), request)
        servers = [Server(name, name, self._places_of(one)) for name, one in found.items()]
        choice = await self.queue.wait(servers, features, model if model.isprintable() and model else OTHER)
        if choice.request is not None:
            _marks(request).append([self._name, choice.server, choice.request])
        return found[choice.server]

    def get_available_deployment(
        self,
        model: str,
        messages: list[dict[str, str]] | None = None,
        input: str | list[Any] | None = None,
        specific_deployment: bool | None = False,
        request_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do the same for calls that are not asynchronous; the calling thread waits."""
        made = self.async_get_available_deployment(model, messages, input, specific_deployment, request_kwargs)
        return asyncio.run_coroutine_threadsafe(made, self._own_loop()).result()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """Return an event loop in a thread of its own: the calling thread may have one that runs already."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                Thread(target=self._loop.run_forever, name="bilinq-litellm", daemon=True).start()
            return self._loop

    def _places_of(self, deployment: Mapping[str, Any]) -> int:
        limit = deployment["litellm_params"].get("max_parallel_requests")
        return limit if isinstance(limit, int) and limit > 0 else self._places

    # Outcomes

    def ended(self, kwargs: Mapping[str, Any], response: Any, seconds: float, failed: bool) -> None:
        """Learn from one attempt; called by `callback`. It raises nothing."""
        try:
            number = _taken(self._name, kwargs)
            if number is None:
                return
            status = getattr(kwargs.get("exception"), "status_code", None)
            if kwargs.get("cache_hit") or (failed and status in NOT_ITS_FAULT):
                self.queue.drop(number)
            elif failed:
                self.queue.finish(number, failed=True)
            else:
                self._answered(number, kwargs, response, seconds)
        except Exception:
            LOG.exception("bilinq could not learn from a request")
            self.counts.errors += 1

    def _answered(self, number: int, kwargs: Mapping[str, Any], response: Any, seconds: float) -> None:
        quality = 1.0 if self._judge is None else self.queue.call("judge", self._judge, kwargs, response)
        spent = self._dollar * (kwargs.get("response_cost") or 0.0) + self._second * seconds
        self.queue.finish(number, None if quality is None else quality - spent)
        name = getattr(response, "id", None)
        if isinstance(name, str):
            with self._lock:
                self._answers[name] = _Answer(number, spent)
                while len(self._answers) > self._keep:
                    self._answers.popitem(last=False)

    async def attach_to_proxy(self) -> None:
        """Attach to the router of the LiteLLM proxy in this process, if that has one and it is not attached yet."""
        if self._router is None:
            router = getattr(_litellm("litellm.proxy.proxy_server"), "llm_router", None)
            if router is not None:
                self.attach(router)


def _litellm(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("litellm"):
            raise
        raise BilinqError("bilinq[litellm] is not installed; run: pip install 'bilinq[litellm]'") from None


def _callback(routing: BilinqRouting) -> Any:
    """Return an object of LiteLLM's CustomLogger; the class is made here, since LiteLLM is not imported before."""

    base = _litellm("litellm.integrations.custom_logger").CustomLogger

    def ended(failed: bool) -> Callable[..., None]:
        def note(self: Any, kwargs: Mapping[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
            routing.ended(kwargs, response_obj, max((end_time - start_time).total_seconds(), 0.0), failed)

        return note

    def soon(function: Callable[..., None]) -> Callable[..., Any]:
        async def note(self: Any, kwargs: Mapping[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
            function(self, kwargs, response_obj, start_time, end_time)

        return note

    def begin(self: Any) -> None:
        base.__init__(self)
        self.strategy = routing._name  # LiteLLM takes callbacks for the same if their class and plain attributes are

    async def before(self: Any, *arguments: Any, **more: Any) -> None:
        await routing.attach_to_proxy()

    success, failure = ended(False), ended(True)
    methods: dict[str, Any] = {
        "log_success_event": success, "async_log_success_event": soon(success),
        "log_failure_event": failure, "async_log_failure_event": soon(failure),
        "async_pre_call_hook": before,
        "__init__": begin,
    }  # fmt: skip
    return type("BilinqCallback", (base,), methods)()


def _marks(request: dict[str, Any]) -> list[list[Any]]:
    """Return the list of attempts in the metadata of a request, which LiteLLM passes to its callbacks."""
    name = "litellm_metadata" if isinstance(request.get("litellm_metadata"), dict) else "metadata"
    if not isinstance(request.get(name), dict):
        request[name] = {}
    marks: list[list[Any]] = request[name].setdefault(MARK, [])
    return marks


def _taken(strategy: str, kwargs: Mapping[str, Any]) -> int | None:
    """Remove the oldest attempt on the deployment of a callback from the metadata; return its number, or None.

    LiteLLM calls the callbacks of all strategies of a process for every request, so others may have left marks, too.
    """
    call = kwargs.get("litellm_params") or {}
    deployment = str((call.get("model_info") or {}).get("id"))
    for name in ("metadata", "litellm_metadata"):
        marks = (call.get(name) or {}).get(MARK) or []
        for mark in marks:
            if mark[:2] == [strategy, deployment]:
                marks.remove(mark)
                number: int = mark[2]
                return number
    return None


def _text(messages: Any, input: Any) -> str:
    """Return the text of a request: of the messages' contents, or of the input of an embedding."""
    parts: list[Any] = [one.get("content") for one in messages or () if isinstance(one, dict)]
    parts += input if isinstance(input, list) else [input]
    flat = [piece for part in parts for piece in (part if isinstance(part, list) else [part])]
    texts = [piece.get("text") if isinstance(piece, dict) else piece for piece in flat]
    return "\n".join(one for one in texts if isinstance(one, str))
