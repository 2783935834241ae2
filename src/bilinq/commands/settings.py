"""`bilinq settings`: show and change the settings of a running service, and undo changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from bilinq.commands.shared import Json, Url, connect, print_structs, time_text
from bilinq.errors import BadInput

if TYPE_CHECKING:
    from bilinq.client import Client
    from bilinq.live.wire.messages import SettingsUpdate

WEIGHT = "weight."  # begins the name of the weight of a job class

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Key = Annotated[str | None, Option(help="Key with scope fleet. [default: BILINQ_KEY]")]


@app.callback()
def main() -> None:
    """Show, change and undo settings while the service runs."""


@app.command()
def show(
    url: Url = None,
    key: Annotated[str | None, Option(help="Key with scope read. [default: BILINQ_KEY]")] = None,
    json: Json = False,
) -> None:
    """Show the settings of the policy, and the weights of job classes."""
    with connect(url, key) as client:
        _show(client, json)


@app.command("set")
def set_settings(
    changes: Annotated[list[str], Argument(metavar="NAME=VALUE...", help="For example target_wait=5 weight.chat=2.")],
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Change settings and weights of classes: all or none.

    Settings are target_wait or V, work_conserving, exploration, shadow, and weight.CLASS.
    """
    update = parse_update(changes)
    with connect(url, key) as client:
        client.update_settings(update)
        _show(client, json)


@app.command()
def history(
    limit: Annotated[int, Option(min=1, max=1000, help="Number of changes to list at most.")] = 20,
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """List who changed which settings and when, newest first."""
    with connect(url, key) as client:
        found = client.settings_history(limit=limit)
    if json:
        print_structs({"changes": found})
        return
    if not found:
        typer.echo("no changes")
        return
    from bilinq.commands.tables import show_rows

    notes = ("undone" if one.undone else "" if one.undoes is None else f"undoes {one.undoes}" for one in found)
    rows = (
        (str(one.id), time_text(one.at), one.who, _change_text(one.before, one.after), note)
        for one, note in zip(found, notes, strict=True)
    )
    show_rows(("change", "at", "by", "what", ""), rows, left=5)


@app.command()
def undo(
    change: Annotated[int | None, Option(help="Undo only if this is the newest change that was not undone.")] = None,
    url: Url = None,
    key: Key = None,
    json: Json = False,
) -> None:
    """Undo the newest change of settings, and show them.

    A change that was undone already does not count.
    """
    with connect(url, key) as client:
        client.undo_settings(change)
        _show(client, json)


def _change_text(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return what has changed as one text: the old and the new value of each setting."""
    parts = []
    for name, new in after.items():
        pairs = {name: (before[name], new)}
        if isinstance(new, dict):
            pairs = {f"{WEIGHT}{one}": (before[name][one], value) for one, value in new.items()}
        parts += [f"{one}: {setting_text(old)} to {setting_text(value)}" for one, (old, value) in pairs.items()]
    return "; ".join(parts)


def parse_update(changes: Sequence[str]) -> SettingsUpdate:
    """Return the settings that some texts such as "target_wait=5" ask for.

    Examples
    --------
    >>> update = parse_update(["target_wait=5", "weight.chat=2"])
    >>> update.target_wait, update.weight
    (5.0, {'chat': 2.0})
    """
    from bilinq.live.wire.messages import SettingsUpdate
    from bilinq.live.wire.queries import convert

    given: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.rpartition("=")
        if not equals or not name:
            raise BadInput(f"a setting must be given as NAME=VALUE; got {change!r}")
        place, name = (
            (given.setdefault("weight", {}), name.removeprefix(WEIGHT)) if name.startswith(WEIGHT) else (given, name)
        )
        if name in place:
            raise BadInput(f"{name} must be given once; got it twice")
        place[name] = text
    return convert(given, SettingsUpdate, strict=False)  # type: ignore[no-any-return]


def _show(client: Client, json: bool) -> None:
    settings, classes = client.settings(), client.classes().job_classes
    weights = {one.name: one.weight for one in classes}
    if json:
        import msgspec

        print_structs(msgspec.structs.asdict(settings) | {"weight": weights})
        return
    from bilinq.commands.tables import show_rows

    shown = {
        "target_wait": settings.target_wait, "V": settings.V, "work_conserving": settings.work_conserving,
        "exploration": settings.exploration, "policy": settings.policy, "shadow": settings.shadow,
    }  # fmt: skip
    rows = [(name, setting_text(value)) for name, value in shown.items()]
    rows += [(f"{WEIGHT}{name}", setting_text(weight)) for name, weight in weights.items()]
    show_rows(("setting", "value"), rows, left=2)


def setting_text(value: Any) -> str:
    """Return a value as `bilinq settings set` accepts it; "not set" for none."""
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
