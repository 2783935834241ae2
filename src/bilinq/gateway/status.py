"""The gateway as others see it: its metrics for Prometheus, and its state for the page."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

from bilinq.gateway.features import KINDS
from bilinq.live.metrics.page import CONTENT_TYPE as PLAIN
from bilinq.live.metrics.page import Page, add_process

if TYPE_CHECKING:
    from bilinq.gateway.gateway import Gateway

CONTENT_TYPE = PLAIN.encode()
RECENT = 40  # requests that the page lists


def metrics(gateway: Gateway) -> str:
    """Return the page of metrics."""
    page, meters, dispatcher = Page(), gateway.meters, gateway.dispatcher
    page.counter(
        "bilinq_gateway_attempts_total", "Requests at back ends, by how they ended.",
        [({"tenant": t, "backend": b, "state": s}, n) for (t, b, s), n in meters.attempts.items()],
    )  # fmt: skip
    page.counter(
        "bilinq_gateway_refused_total", "Requests without an answer, by the code of the error.",
        [({"tenant": t, "reason": r}, n) for (t, r), n in meters.refused.items()],
    )  # fmt: skip
    page.counter(
        "bilinq_gateway_cost_total", "Money spent, in the currency of the prices.",
        [({"tenant": t, "backend": b}, n) for (t, b), n in meters.cost.items()],
    )  # fmt: skip
    page.counter(
        "bilinq_gateway_tokens_total", "Tokens, by kind.",
        [({"backend": b, "kind": k}, n) for (b, k), n in meters.tokens.items()],
    )  # fmt: skip
    for name, sums in (("quality", meters.quality), ("reward", meters.reward)):
        page.summary(
            f"bilinq_gateway_{name}", f"The {name} of answers.",
            [({"backend": b, "kind": k}, meters.rated[b, k], total) for (b, k), total in sums.items()],
        )  # fmt: skip
    page.histogram("bilinq_gateway_wait_seconds", "Time in the queue.", _labelled("tenant", meters.waits))
    page.histogram("bilinq_gateway_first_token_seconds", "Time to the first part.", _labelled("backend", meters.first))
    page.histogram("bilinq_gateway_answer_seconds", "Time to the whole answer.", _labelled("backend", meters.seconds))
    page.gauge(
        "bilinq_gateway_waiting", "Requests that wait.", [({"tenant": t}, n) for t, n in dispatcher.waiting.items()]
    )
    loads = dispatcher.loads.items()
    page.gauge("bilinq_gateway_busy", "Requests at a back end.", [({"backend": b}, one.busy) for b, one in loads])
    page.gauge("bilinq_gateway_slots", "Most requests at a time.", [({"backend": b}, one.slots) for b, one in loads])
    down = dispatcher.down(dispatcher.loads)
    page.gauge(
        "bilinq_gateway_paused_seconds", "What is left of the pause of a back end that failed.",
        [({"backend": b}, down.get(b, 0.0)) for b in dispatcher.loads],
    )  # fmt: skip
    spends = [(name, gateway.budgets.of(name), gateway.budgets.factor(name)) for name in gateway.config.tenants]
    page.gauge(
        "bilinq_gateway_spent_today", "Money spent today (UTC).", [({"tenant": t}, s.spent) for t, s, _ in spends]
    )
    page.gauge("bilinq_gateway_money_factor", "How much money counts.", [({"tenant": t}, f) for t, _, f in spends])
    page.counter("bilinq_gateway_log_failures_total", "Failed commits of the log.", gateway.journal.failures)
    page.counter("bilinq_gateway_log_dropped_total", "Rows that the log lost.", gateway.journal.dropped)
    add_process(page)
    return page.text()


def _labelled(label: str, histograms: Any) -> list[tuple[dict[str, str], Any]]:
    return [({label: name}, one) for name, one in histograms.items()]


def state(gateway: Gateway) -> dict[str, Any]:
    """Return what the page shows."""
    worth, waits = gateway.config.worth, gateway.dispatcher.scheduler.waits
    return {
        "shadow": _shadow(gateway) if gateway.config.shadow else None,
        "backends": [_backend(gateway, name) for name in gateway.dispatcher.loads],
        "tenants": [_tenant(gateway, name) for name in gateway.config.tenants],
        "learnt": learnt(gateway),
        "waits": None if waits is None else {
            "target": None if worth.wait else waits.target, "mean": waits.measured,
            "note": f"a second costs {worth.wait:g}" if worth.wait else waits.note,
        },
        "worth": {
            "second": worth.second, "first_second": worth.first_second, "money": worth.money, "switch": worth.switch,
            "wait": worth.wait,
        },
        "quality_from": dict(gateway.meters.sources),
        "sessions": len(gateway.sessions),
        "samples": [sample.plain() for sample in gateway.meters.samples],
        "recent": [one.explained(worth) for one in gateway.records.latest(RECENT)],
    }  # fmt: skip


def learnt(gateway: Gateway) -> list[dict[str, Any]]:
    """Return the learnt reward of a usual request of each kind at each back end, with its standard error."""
    return [{"kind": kind, "cells": _cells(gateway, kind)} for kind in KINDS if kind in gateway.usual]


def _cells(gateway: Gateway, kind: str) -> list[dict[str, Any]]:
    meters, names = gateway.meters, list(gateway.dispatcher.loads)
    options = {one.server_class: one for one in gateway.dispatcher.advise(kind, gateway.usual[kind], names).options}
    return [
        {
            "backend": name, "mean": options[name].value, "error": options[name].uncertainty,
            "seen": meters.rated[name, kind],
            "quality": meters.quality[name, kind] / max(meters.rated[name, kind], 1),
        }
        for name in names if name in options
    ]  # fmt: skip


def _backend(gateway: Gateway, name: str) -> dict[str, Any]:
    load, meters, backend = gateway.dispatcher.loads[name], gateway.meters, gateway.rules.backends[name]
    states = {
        state: sum(n for (_, b, s), n in meters.attempts.items() if b == name and s == state)
        for state in ("done", "failed", "left", "refused")
    }
    rated = sum(n for (b, _), n in meters.rated.items() if b == name)
    return {
        "name": name, "model": backend.upstream_model, "busy": load.busy, "slots": load.slots, "error": load.last_error,
        "paused": gateway.dispatcher.down([name]).get(name, 0.0), "states": states,
        "cost": sum(n for (_, b), n in meters.cost.items() if b == name),
        "quality": sum(n for (b, _), n in meters.quality.items() if b == name) / rated if rated else None,
        "seconds": meters.seconds[name].total / max(sum(meters.seconds[name].counts), 1),
        "first": meters.first[name].total / max(sum(meters.first[name].counts), 1),
        "price_in": backend.price_in, "price_out": backend.price_out,
    }  # fmt: skip


def _tenant(gateway: Gateway, name: str) -> dict[str, Any]:
    spend, settings, meters = gateway.budgets.of(name), gateway.config.tenants[name], gateway.meters
    return {
        "name": name, "weight": 1.0 if settings is None else settings.weight, "waiting": gateway.dispatcher.waiting[name],
        "spent": spend.spent, "reserved": spend.reserved, "budget": gateway.budgets.limit(name),
        "money_factor": gateway.budgets.factor(name), "wait": _mean(meters.waits[name]),
        "answers": sum(n for (t, _, s), n in meters.attempts.items() if t == name and s == "done"),
        "refused": sum(n for (t, _), n in meters.refused.items() if t == name),
    }  # fmt: skip


def _mean(histogram: Any) -> float | None:
    number = sum(histogram.counts)
    return histogram.total / number if number else None


def _shadow(gateway: Gateway) -> dict[str, Any]:
    """Return what the scheduler would have earned more, by what it has learnt so far, with a standard error."""
    kept = gateway.meters.shadow
    number = max(kept["requests"], 1.0)
    return {
        "requests": kept["requests"], "differ": kept["differ"], "gain": kept["gain"] / number,
        "error": sqrt(kept["variance"]) / number,
    }  # fmt: skip
