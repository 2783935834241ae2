"""LiteLLM's routing strategies as routers of `bilinq.replay`: its own classes, called as its Router calls them."""

import os
import random
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any

import numpy as np

from bilinq.routing.router import Dispatcher, FleetView, WaitingJob

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # LiteLLM fetches nothing
GROUP = "any"
START = datetime(2026, 1, 1)  # virtual time counts from here
CLASSES = {
    "least-busy": ("least_busy", "LeastBusyLoggingHandler"),
    "latency-based-routing": ("lowest_latency", "LowestLatencyLoggingHandler"),
    "cost-based-routing": ("lowest_cost", "LowestCostLoggingHandler"),
}
TOKENS = 100  # of each answer: the latency strategy divides by it, and it is not a back end's virtue


@dataclass
class LiteLlmStrategy(Dispatcher):
    """One of LiteLLM's strategies, which gets the calls and the answers of a virtual world through its callbacks.

    `prices` are dollars for an output token by column, for the strategy that looks at them.
    """

    strategy: str
    prices: tuple[float, ...]

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        module, name = CLASSES[self.strategy]
        cache = import_module("litellm.caching.caching").DualCache()
        self._handler: Any = getattr(import_module(f"litellm.router_strategy.{module}"), name)(router_cache=cache)
        self._deployments = [
            {
                "model_name": GROUP, "model_info": {"id": str(j)},
                "litellm_params": {"model": f"openai/{j}", "input_cost_per_token": price, "output_cost_per_token": price},
            }
            for j, price in enumerate(self.prices)
        ]  # fmt: skip
        self._began: dict[int, float] = {}
        random.seed(int(rng.integers(2**31)))  # LiteLLM draws from the module's generator

    def choose(self, job: WaitingJob) -> int:
        healthy = [self._deployments[j] for j in job.eligible]
        found = result(self._handler.async_get_available_deployments(model_group=GROUP, healthy_deployments=healthy))
        column = int(found["model_info"]["id"])
        if self.strategy == "least-busy":
            self._handler.log_pre_api_call(GROUP, None, self._kwargs(column))
        return column

    def _kwargs(self, column: int) -> dict[str, Any]:
        return {"litellm_params": {"metadata": {"model_group": GROUP}, "model_info": {"id": str(column)}}}

    def decide(self, now: float, waiting: Mapping[int, WaitingJob], idle: list[int]) -> Iterable[tuple[int, int]]:
        pairs = list(super().decide(now, waiting, idle))
        self._began |= {number: now for number, _ in pairs}
        return pairs

    def finish(self, job: WaitingJob, server: int, duration: float) -> None:
        """Report the time from arrival to the end of the answer, as a caller of a back end with a queue sees it."""
        types = import_module("litellm")
        usage = types.Usage(prompt_tokens=0, completion_tokens=TOKENS, total_tokens=TOKENS)
        end = self._began.pop(job.number) + duration
        began, ended = (START + timedelta(seconds=time) for time in (job.arrival, end))
        response = types.ModelResponse(usage=usage)
        self._handler.log_success_event(self._kwargs(server), response, began, ended)

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        """Ignore rewards."""


@dataclass
class LiteLlmAdaptive(Dispatcher):
    """LiteLLM's adaptive rule: a Beta posterior for each kind of request and model, and a weight for cheapness.

    Its own functions and default weights. The signals that LiteLLM reads from a conversation are replaced by the judged
    quality, which is in `quality` (N, J); a better signal than it has.
    """

    prices: tuple[float, ...]
    quality: Any

    def start(self, fleet: FleetView, rng: np.random.Generator) -> None:
        super().start(fleet, rng)
        self._bandit: Any = import_module("litellm.router_strategy.adaptive_router.bandit")
        types = import_module("litellm.types.router")
        plain = types.AdaptiveRouterPreferences(quality_tier=2, strengths=[])
        prior = [self._bandit.initial_cell(plain, types.RequestType(kind)) for kind in fleet.job_classes]
        self._cells = [{str(j): cell for j in range(len(self.prices))} for cell in prior]
        self._costs = {str(j): price for j, price in enumerate(self.prices)}
        self._random = random.Random(int(rng.integers(2**31)))

    def choose(self, job: WaitingJob) -> int:
        return int(self._bandit.pick_best(self._cells[job.job_class], self._costs, rng=self._random))

    def learn(self, job: WaitingJob, server: int, reward: float, duration: float) -> None:
        cells, quality = self._cells[job.job_class], float(self.quality[job.number, server])
        cells[str(server)] = self._bandit.apply_delta(cells[str(server)], quality, 1.0 - quality)


def result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that has nothing to wait for: LiteLLM's cache is in memory."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the coroutine waits for something")


def kind_of(text: str) -> str:
    """Return the kind of request that LiteLLM's classifier sees in a prompt."""
    return str(import_module("litellm.router_strategy.adaptive_router.classifier").classify_prompt(text).value)
