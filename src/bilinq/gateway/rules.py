"""Which back ends may serve a request, what it may cost there, and what the decision should count against each."""

from __future__ import annotations

from collections.abc import Iterable

from bilinq.gateway.budget import Budgets
from bilinq.gateway.config import Backend, Config
from bilinq.gateway.errors import ApiError, no_such_model, not_eligible, out_of_budget
from bilinq.gateway.request import Request
from bilinq.gateway.sessions import Sessions
from bilinq.gateway.worth import Means

USUAL_OUTPUT = 300.0  # tokens of an answer before any was seen
TRIALS, PREFERENCE = 8.0, 0.3
"""Requests of a kind by which a new back end is tried, and what others count against themselves until then."""
UNTRIED = 1.0
"""What others count while a back end has had no request of a kind: what is unknown is expected to be worth 0."""
EXPERIENCE = 100.0  # recent requests of other back ends from which on one without any is new
UNSURE = 1.25  # factor by which the estimate of a prompt may be too low, for reservations


class Rules:
    """What restricts and prices a request: eligible back ends, reservations, and costs of the decision."""

    def __init__(self, config: Config, budgets: Budgets, sessions: Sessions) -> None:
        self.backends = {one.name: one for one in config.backend}
        self._config, self._budgets, self._sessions = config, budgets, sessions
        self.output = Means(USUAL_OUTPUT)
        self.tried = Means(1.0)  # only their numbers count
        self._new: frozenset[str] = frozenset()

    def find_new(self) -> None:
        """Note which back ends have never been tried although others have, so that the next requests try them."""
        known = {name: self.tried.known(name) for name in self.backends}
        if max(known.values()) >= EXPERIENCE:
            self._new = frozenset(name for name, number in known.items() if not number)

    def eligible(self, request: Request) -> tuple[str, ...]:
        """Return the back ends that may serve a request, or raise the `ApiError` that says why there is none."""
        found = self._allowed(request.tenant)
        found = self._wanted(request, found)
        found = _keep(found, (one for one in found if request.endpoint in one.serves),
                      f"none of those asked for serves {request.endpoint}", "model")  # fmt: skip
        for need in sorted(request.needs):
            found = _keep(found, (one for one in found if need in one.features), f"none has {need}", None)
        needed = request.prompt_tokens + (request.max_tokens or 0)
        longest = max(one.context for one in found)
        reason = f"it needs about {needed:.0f} tokens, and the longest context has {longest}"
        found = _keep(found, (one for one in found if one.context >= needed), reason, "messages")
        left = self._budgets.left(request.tenant)
        affordable = [one for one in found if self.reserve(request, one) <= left]
        if not affordable:
            raise self.over_budget(request.tenant)
        return tuple(one.name for one in affordable)

    def over_budget(self, tenant: str) -> ApiError:
        """Return the error for a tenant whose budget is spent."""
        return out_of_budget(tenant, self._budgets.limit(tenant) or 0.0, self._budgets.next_day())

    def visible(self, tenant: str) -> list[Backend]:
        """Return the back ends that a tenant may use."""
        return self._allowed(tenant)

    def reserve(self, request: Request, backend: Backend) -> float:
        """Return the most that a request is expected to cost at a back end."""
        room = min(request.max_tokens or backend.max_output, backend.context)
        return backend.price(UNSURE * request.prompt_tokens, _choices(request) * room)

    def expected(self, request: Request, kind: str, backend: Backend) -> float:
        """Return what a request is expected to cost at a back end."""
        made = min(self.output.get(backend.name, kind), request.max_tokens or backend.max_output)
        return backend.price(request.prompt_tokens, _choices(request) * made)

    def cost(self, request: Request, kind: str, names: Iterable[str]) -> dict[str, float]:
        """Return what the decision should count against each back end, in units of quality, beside what is learnt.

        This is the part of the price by which a budget makes money count more, the cost of moving a session, and, while
        some have hardly been tried, a preference for these.
        """
        names = tuple(names)
        new = {name for name in self._new.intersection(names) if self.tried.known(name, kind) < TRIALS}
        more = self._config.worth.money * (self._budgets.factor(request.tenant) - 1.0)
        stays, move = self._sessions.at(request), self._sessions.move_cost(request)
        untried = {name for name in names if not self.tried.known(name, kind)}
        if stays is not None and move > PREFERENCE:
            untried.clear()
        found = {}
        for name in names:
            cost = more * self.expected(request, kind, self.backends[name]) if more else 0.0
            cost += move if stays is not None and name != stays else 0.0
            cost += PREFERENCE if new and name not in new else 0.0
            cost += UNTRIED if untried and name not in untried else 0.0
            if cost:
                found[name] = cost
        return found

    def _allowed(self, tenant: str) -> list[Backend]:
        settings = self._config.tenants[tenant]
        words = None if settings is None else settings.backends
        return [one for one in self.backends.values() if not words or one.words.intersection(words)]

    def _wanted(self, request: Request, among: list[Backend]) -> list[Backend]:
        """Return the back ends that the caller wants: by model, and by tags or region."""
        for name in request.models:
            if not any(name in one.words for one in among):
                raise no_such_model(name, [one.name for one in among])
        found = [one for one in among if not request.models or one.words.intersection(request.models)]
        return _keep(found, (one for one in found if one.words.issuperset(request.tags)),
                     f"none has all of the tags {', '.join(request.tags)}", None)  # fmt: skip


def _keep(before: list[Backend], after: Iterable[Backend], reason: str, param: str | None) -> list[Backend]:
    """Return the back ends that a rule leaves, or raise an error with the reason if it leaves none."""
    found = list(after)
    if before and not found:
        raise not_eligible(reason, param)
    return found


def _choices(request: Request) -> int:
    number = request.body.get("n")
    return number if isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= 128 else 1
