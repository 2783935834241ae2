"""The reference pages as Markdown: the Python API from its source code, the command line and the HTTP API."""

import builtins
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from math import inf
from pathlib import Path

import griffe
import typer.main
from typer.core import TyperCommand, TyperGroup

from bilinq.live.http.routing import Route
from site_builder.page import Page

PACKAGE = "bilinq"
GROUPS = {
    "Problems and what is best": ("Problem", "oracle", "Oracle"),
    "One slot": ("allocate", "Allocation", "assign"),
    "Policies": (
        "Policy", "Sabr", "KnownRewards", "UgdaOl", "MaxWeight", "Greedy", "Random", "StaticSplit", "FirstCome", "Exact",
        "FixedPoint", "Rounds",
    ),
    "Simulation": ("simulate", "Runs"),
    "Workloads and routers": ("Workload", "Outage", "replay", "Replay", "Router", "SchedulerRouter", "contest", "Contest"),
    "Decisions that were logged": ("evaluate", "Estimate"),
    "The live scheduler": (
        "Scheduler", "JobClass", "ServerClass", "RewardRange", "Assignment", "text_features",
    ),
    "Errors": ("BilinqError", "BadInput", "NotSolved", "UnstableLoad"),
}  # fmt: skip
"""The public names of the package, by purpose."""

MODULES = ("simulation", "routing", "learning", "theory", "distributed", "traces", "checks", "client")
"""The modules with a page of their own."""

TAGS = {"work": "Work", "jobs": "Jobs", "state": "State", "admin": "Administration", "open": "Without a key"}
"""The headings of the page about the HTTP API, by the tag of a route."""


def package_page() -> Page:
    """Return the page of the package's own public names."""
    package = _package()
    parts = [f"# `{PACKAGE}`", _docstring(package)]
    for title, names in GROUPS.items():
        parts += [f"## {title}", *(_entry(name, find(package, name)) for name in names)]
    return Page("reference", "\n\n".join(parts))


def module_page(name: str) -> Page:
    """Return the page of a module: its public classes and functions, without those of the package's page."""
    module = find(_package(), name)
    assert isinstance(module, griffe.Module)
    names = module.exports or [key for key, member in module.members.items() if member.is_public]
    found = {str(key): find(module, str(key)) for key in names if key not in (_package().exports or ())}
    entries = [_entry(key, one) for key, one in found.items() if one.is_class or one.is_function]
    return Page(f"reference-{name}", "\n\n".join([f"# `{PACKAGE}.{name}`", _docstring(module), *entries]))


def find(module: griffe.Module, name: str) -> griffe.Object:
    """Return what a module offers under a public name.

    Imports are followed first: where a submodule has the name of an imported function, users get the function.
    """
    path = module.imports.get(name, "")
    owner, _, original = path.rpartition(".")
    if owner and path != f"{module.path}.{name}":
        return find(module.modules_collection[owner], original)
    if name not in module.members:
        raise LookupError(f"{module.path} has no public name {name!r}; correct GROUPS or MODULES in {__name__}")
    return _target(module.members[name])


def docstring_markdown(text: str) -> str:
    """Return a docstring in NumPy style as Markdown; parameters, attributes and errors become lists."""
    parts: list[str] = []
    for section in griffe.Docstring(text).parse("numpy", warnings=False):
        title = f"**{section.title or section.kind.value.title()}**"
        match section:
            case griffe.DocstringSectionText():
                parts.append(section.value)
            case griffe.DocstringSectionExamples():
                codes = (code if kind.value == "text" else f"```pycon\n{code}\n```" for kind, code in section.value)
                parts += [title, *codes]
            case griffe.DocstringSectionAdmonition():
                parts += [title, section.value.description]
            case _:
                parts += [title, _items(section.value)]
    return "\n\n".join(part.strip() for part in parts)


def commands_page() -> Page:
    """Return the page of the command line: the help text of every command."""
    from bilinq.commands.app import app

    parts = ["# Command line", "Each command prints the same text with `--help`."]
    for path, command in _commands("bilinq", typer.main.get_command(app)):
        with command.make_context(path, [], resilient_parsing=True) as context:
            parts += [f"## {path}", f"```text\n{command.get_help(context).strip()}\n```"]
    return Page("commands", "\n\n".join(parts))


def http_page() -> Page:
    """Return the page of the HTTP API: every route with its scopes, request body and response."""
    from bilinq.live.http.app import ROUTES

    intro = (
        "Bodies are JSON. Send a key as `Authorization: Bearer KEY`; it needs one of the scopes. Errors are "
        "`application/problem+json` with `type`, `title`, `detail` and, for bad input, `field`. `/openapi.json` describes "
        "every field with examples."
    )
    head = "| call | what it does | scopes | body | response |\n| --- | --- | --- | --- | --- |"
    parts = ["# HTTP API", intro]
    for tag, group in groupby(sorted(ROUTES, key=lambda route: [*TAGS].index(route.tag)), key=lambda route: route.tag):
        parts += [f"## {TAGS[tag]}", "\n".join([head, *map(_row, group)])]
    return Page("http", "\n\n".join(parts))


PAGES: Sequence[Callable[[], Page]] = (
    package_page, *(partial(module_page, name) for name in MODULES), commands_page, http_page,
)  # fmt: skip
"""The functions that return the reference pages."""


@cache
def _package() -> griffe.Module:
    """Return the package, read from its source code without importing it."""
    loaded = griffe.load(PACKAGE, search_paths=[Path(__file__).parents[2] / "src"], resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)
    return loaded


def _target(member: griffe.Object | griffe.Alias) -> griffe.Object:
    return member.final_target if isinstance(member, griffe.Alias) else member


def _docstring(thing: griffe.Object) -> str:
    return docstring_markdown(thing.docstring.value) if thing.docstring else ""


def _entry(name: str, thing: griffe.Object) -> str:
    """Return a class with its methods and properties, or a function."""
    parts = [f"### {name}", f"```python\n{_call(name, thing, width=100)}\n```", _docstring(thing)]
    if isinstance(thing, griffe.Class):
        parts += [_member(one) for one in _members(thing)]
        if any(issubclass(getattr(builtins, base, object), BaseException) for base in _bases(thing)):
            del parts[1]  # users catch errors and do not create them
    return "\n\n".join(part for part in parts if part)


def _members(thing: griffe.Class) -> Iterator[griffe.Object]:
    """Yield the public methods and properties with a docstring, those of the class itself first."""
    seen: set[str] = set()
    for owner in (thing, *thing.mro()):
        for member in map(_method, owner.members.values()):
            called = member.is_function or "property" in member.labels
            if called and member.docstring and member.name not in seen and not member.name.startswith("_"):
                seen.add(member.name)
                yield member


def _method(member: griffe.Object | griffe.Alias) -> griffe.Object:
    """Return a member of a class; a call of the HTTP API, which yields `Steps[Job]`, returns `Job` as a method."""
    found = _target(member)
    match found:
        case griffe.Function(returns=griffe.ExprSubscript(left=griffe.ExprName(name="Steps"), slice=result)):
            return griffe.Function(found.name, parameters=found.parameters, returns=result, docstring=found.docstring)
    return found


def _lookup(name: griffe.Expr) -> griffe.Object | None:
    """Return what a name stands for if it is defined in the package."""
    try:
        return _target(_package().modules_collection[name.canonical_path])
    except KeyError:
        return None


def _member(member: griffe.Object) -> str:
    """Return a method with its signature, or a property, as an item of a list."""
    call = _call(member.name, member) if member.is_function else member.name
    return "\n  ".join(f"- `{call}`\n\n{_docstring(member)}".splitlines())


def _bases(thing: griffe.Class) -> set[str]:
    """Return the names of all base classes, those from other packages included."""
    return {_source(base) for owner in (thing, *thing.mro()) for base in owner.bases}


def _call(name: str, thing: griffe.Object, width: float = inf) -> str:
    """Return the call of a function or class with types, on several lines if it is longer than `width`."""
    parameters = _parameters(thing)
    words = [_parameter(one) for one in parameters]
    kinds = [one.kind for one in parameters]
    if griffe.ParameterKind.keyword_only in kinds and griffe.ParameterKind.var_positional not in kinds:
        words.insert(kinds.index(griffe.ParameterKind.keyword_only), "*")
    result = _source(thing.returns or "None") if isinstance(thing, griffe.Function) else "None"
    end = ")" if result == "None" else f") -> {result}"
    line = f"{name}({', '.join(words)}{end}"
    return line if len(line) <= width else "\n".join([f"{name}(", *(f"    {word}," for word in words), end])


def _parameters(thing: griffe.Object) -> list[griffe.Parameter]:
    """Return the parameters of a function or a class; those of a struct or a named tuple are its fields."""
    assert isinstance(thing, griffe.Class | griffe.Function)
    if isinstance(thing, griffe.Function) or not _bases(thing) & {"Struct", "NamedTuple"}:
        return [one for one in thing.parameters if one.name not in ("self", "cls")]
    return [
        griffe.Parameter(one.name, annotation=one.annotation, default=None if "field(" in str(one.value) else one.value)
        for one in map(_target, thing.all_members.values())
        if isinstance(one, griffe.Attribute) and "property" not in one.labels
    ]


def _parameter(one: griffe.Parameter) -> str:
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    prefix = stars.get(one.kind or griffe.ParameterKind.keyword_only, "")
    text = prefix + one.name + (f": {_source(one.annotation)}" if one.annotation else "")
    return text if prefix or one.default is None else f"{text} = {_source(one.default)}"


def _source(expression: str | griffe.Expr) -> str:
    """Return an expression without names of modules, and with constants and aliases of types in full."""
    match expression:
        case griffe.ExprAttribute():
            return _source(expression.last)
        case griffe.ExprName():
            found = _lookup(expression)
            value = found.value if isinstance(found, griffe.Attribute) else None
            if value and (expression.name.isupper() or str(value).startswith(("Literal[", "Callable["))):
                return _source(value)
            return expression.name
        case griffe.Expr():
            return "".join(_source(part) for part in expression.iterate(flat=False))
    return str(expression)


def _items(items: list[griffe.DocstringElement]) -> str:
    """Return a list of names, types and descriptions; names with the same description share an item."""
    lines = []
    for (kind, about), group in groupby(items, key=lambda one: (one.annotation, one.description)):
        names = ", ".join(getattr(one, "name", "") for one in group)
        escaped = str(kind or "").translate({ord(sign): f"\\{sign}" for sign in "*_<>[]"})
        label = f"`{names}`" + (f" *({escaped})*" if kind else "") if names else f"`{kind}`"
        lines.append(f"- {label} {' '.join(about.split())}".rstrip())
    return "\n".join(lines)


def _commands(path: str, command: object) -> Iterator[tuple[str, TyperCommand]]:
    """Yield every command that is not a group, with the words that run it."""
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from _commands(f"{path} {name}", inner)
    elif isinstance(command, TyperCommand):
        yield path, command


def _row(route: Route) -> str:
    scopes = "none" if route.scopes is None else " or ".join(route.scopes) or "any"
    call, response = f"{route.method} {route.path.replace(':path', '')}", route.status if route.response else 204
    return f"| `{call}` | {route.summary} | {scopes} | {_type(route.body)} | {response} {_type(route.response)} |"


def _type(kind: object) -> str:
    return "" if kind is None else f"`{getattr(kind, '__name__', str(kind))}`"
