"""The reference of the HTTP API, from the table of its routes."""

from itertools import groupby

from bilinq.live.http.routing import Route

TITLES = {"work": "Work", "jobs": "Jobs", "state": "State", "admin": "Administration", "open": "Without a key"}


def text() -> str:
    """Return the page as Markdown: every route with its scopes, its body and its answer."""
    from bilinq.live.http.routes import ROUTES

    intro = (
        "Bodies are JSON. A key goes into `Authorization: Bearer KEY`; one of the scopes is needed. Refusals are "
        "`application/problem+json` with `type`, `title`, `detail` and, for bad input, `field`. `/openapi.json` describes "
        "every field with examples."
    )
    parts = ["# HTTP API", intro]
    ordered = sorted(
        ROUTES, key=lambda route: (list(TITLES).index(route.tag) if route.tag in TITLES else 99, route.tag)
    )
    for tag, some in groupby(ordered, key=lambda route: route.tag):
        parts += [f"## {TITLES.get(tag, tag.capitalize())}", _table(list(some))]
    return "\n\n".join(parts)


def _table(routes: list[Route]) -> str:
    head = "| call | what it does | scopes | body | answer |\n| --- | --- | --- | --- | --- |"
    rows = [
        f"| `{route.method} {route.path.replace(':path', '')}` | {route.about} | {_scopes(route.scopes)} "
        f"| {_kind(route.body)} | {route.status if route.answer else 204} {_kind(route.answer)} |"
        for route in routes
    ]
    return "\n".join([head, *rows])


def _scopes(scopes: tuple[str, ...] | None) -> str:
    return "none" if scopes is None else " or ".join(scopes) or "any"


def _kind(kind: object) -> str:
    return "" if kind is None else f"`{getattr(kind, '__name__', str(kind))}`"
