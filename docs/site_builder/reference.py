"""Reference pages, made of the docstrings of everything public."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from types import ModuleType
from typing import Any

from site_builder.docstring import markdown

GROUPS = {
    "Problems and what is best": ("Problem", "oracle", "Oracle"),
    "One slot": ("allocate", "Allocation", "assign"),
    "Policies": (
        "Policy", "Sabr", "KnownRewards", "UgdaOl", "MaxWeight", "Greedy", "Random", "StaticSplit", "FirstCome", "Exact",
        "FixedPoint", "Rounds",
    ),
    "Simulation": ("simulate", "Runs"),
    "The live scheduler": ("Scheduler", "JobClass", "ServerClass", "RewardRange", "Assignment"),
    "Errors": ("BilinqError", "BadInput", "NotSolved", "UnstableLoad"),
}  # fmt: skip
"""The names of the package itself, by what they are for."""

MODULES = {
    "reference-simulation": "bilinq.simulation",
    "reference-learning": "bilinq.learning",
    "reference-theory": "bilinq.theory",
    "reference-distributed": "bilinq.distributed",
    "reference-traces": "bilinq.traces",
    "reference-checks": "bilinq.checks",
    "reference-client": "bilinq.client",
}


def package() -> str:
    """Return the page of the package itself."""
    import bilinq

    parts = ["# `bilinq`", bilinq.__doc__ or ""]
    for title, names in GROUPS.items():
        parts += [f"## {title}", *(_entry(name, getattr(bilinq, name)) for name in names)]
    return "\n\n".join(parts)


def module_page(name: str) -> str:
    """Return the page of a module: everything public that it offers and that is not on the package's page."""
    import bilinq

    module = importlib.import_module(name)
    shown = {key: value for key, value in _public(module) if key not in bilinq.__all__}
    return "\n\n".join([f"# `{name}`", markdown(module), *(_entry(key, value) for key, value in shown.items())])


PAGES: dict[str, Callable[[], str]] = {"reference": package} | {
    page: partial(module_page, name) for page, name in MODULES.items()
}
"""Names of pages, and what makes their Markdown."""


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value


def _entry(name: str, thing: Any) -> str:
    """Return a class with its methods, or a function."""
    parts = [f"### {name}", _signature(name, thing), markdown(thing)]
    if inspect.isclass(thing):
        parts += [f"- {_member(key, value)}" for key, value in _members(thing)]
    return "\n\n".join(part for part in parts if part)


def _member(name: str, member: Any) -> str:
    """Return a method with its signature, or a property, as an item of a list."""
    call = name if isinstance(member, property | cached_property) else f"{name}{_arguments(member)}"
    return "\n  ".join(f"`{call}`\n\n{markdown(member)}".splitlines())


def _members(thing: type) -> Iterator[tuple[str, Any]]:
    """Yield public methods and properties that have a docstring of their own, in the order in which they are written."""
    fields = {field.name for field in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set()
    seen: set[str] = set()
    for owner in (one for one in thing.__mro__ if one.__module__.startswith("bilinq")):
        for name, value in vars(owner).items():
            inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            documented = isinstance(inner, property | cached_property) or inspect.isfunction(inner)
            if documented and not name.startswith("_") and name not in seen | fields and inspect.getdoc(inner):
                seen.add(name)
                yield name, inner


def _signature(name: str, thing: Any) -> str:
    """Return how to call it, as code; on several lines if it is long."""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return ""
    line = f"{name}{_arguments(thing)}"
    if len(line) > 100:
        line = f"{name}{_arguments(thing, apart=True)}"
    return f"```python\n{line}\n```"


def _arguments(thing: Any, *, apart: bool = False) -> str:
    """Return the parameters in brackets and what is returned; `apart` puts each on a line of its own."""
    signature = inspect.signature(thing)
    shown = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    words: list[str] = []
    for one in shown:
        if one.kind is one.KEYWORD_ONLY and "*" not in words and not any(word.startswith("*") for word in words):
            words.append("*")
        words.append(_parameter(one))
    inner = "".join(f"\n    {word}," for word in words) + "\n" if apart else ", ".join(words)
    returned = signature.return_annotation
    silent = inspect.isclass(thing) or returned in (inspect.Signature.empty, None, "None")
    return f"({inner})" + ("" if silent else f" -> {_kind(returned)}")


def _parameter(one: inspect.Parameter) -> str:
    stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
    text: str = stars + one.name + ("" if one.annotation is one.empty else f": {_kind(one.annotation)}")
    if one.default is one.empty:
        return text
    default = re.sub(r"<[^>]*>", "...", repr(one.default))
    return f"{text} = {default}"


def _kind(annotation: Any) -> str:
    """Return a type in few words: NumPy's long aliases by the names that the code has for them."""
    text: str = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if "_NestedSequence" in text:
        return "ArrayLike | None" if "NoneType" in text else "ArrayLike"
    text = re.sub(r"(?:\w+\.)+(?=[A-Za-z_]\w*)", "", text)
    return re.sub(r"ndarray\[tuple\[Any, \.\.\.\], dtype\[(\w+)\]\]", "Array", text)
