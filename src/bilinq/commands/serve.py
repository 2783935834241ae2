"""`bilinq serve`: the live service, with an option for each of its settings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer import Option

from bilinq.commands.shared import print_structs
from bilinq.errors import BadInput
from bilinq.extras import missing
from bilinq.live.settings import SETTINGS

if TYPE_CHECKING:
    from bilinq.live.settings import ServiceSettings, SettingField

OPPOSITE = {"work_conserving": "may-idle"}  # options that switch a setting off and are not called --no-SETTING


def serve(
    config: Annotated[Path | None, Option(help="TOML file with settings and classes.")] = None,
    demo: Annotated[bool, Option("--demo", help="Simulate jobs and workers, on this computer only.")] = False,
    fleet: Annotated[str | None, Option(help="Demo fleet: gpus, paper, or trace for Google's. [default: gpus]")] = None,
    baseline: Annotated[
        bool | None,
        Option("--baseline/--no-baseline", help="In the demo, also run first come, first served as a baseline."),
    ] = None,
    rival: Annotated[bool | None, Option("--rival/--no-rival", hidden=True)] = None,
    rival_url: Annotated[str | None, Option(hidden=True)] = None,
    rival_key: Annotated[str | None, Option(hidden=True)] = None,
    json: Annotated[
        bool, Option("--json", help="Print the address and log lines as JSON, one object per line.")
    ] = False,
    **settings: Any,
) -> None:
    """Run the live scheduler, an HTTP service for jobs and workers.

    /openapi.json describes the HTTP API. Every setting can also be an environment variable, BILINQ_ and the name in
    capitals, or a key of the --config file. Options override the environment, and the environment overrides the file.
    """
    given = settings | {"baseline": baseline}
    for old, value in {"rival": rival, "rival_url": rival_url, "rival_key": rival_key}.items():
        _take_renamed(given, old, value)
    baseline = given.pop("baseline")
    if demo:
        from bilinq.demo.demo import run_demo

        for package in missing("live"):  # otherwise only the log of the demo's processes would show it
            raise ModuleNotFoundError(name=package)
        say = _print_message if json else typer.echo
        run_demo(fleet or "gpus", given | {"config": config}, say, baseline=bool(baseline))
        return
    if fleet is not None or baseline is not None:
        raise BadInput("--fleet and --baseline are options of --demo; add --demo")
    from bilinq.live.settings import load

    _run(load(config, given | ({"log_format": "json"} if json else {})), json)


def _print_message(text: str) -> None:
    print_structs({"message": text}, indent=0)


def _take_renamed(given: dict[str, Any], old: str, value: Any) -> None:
    """Use the value of a deprecated option for the option that replaces it, unless that is given too."""
    if value is not None:
        new = old.replace("rival", "baseline")
        shown, now = (f"--{name.replace('_', '-')}" for name in (old, new))
        warnings.warn(f"{shown} is deprecated and will be removed in the next version; use {now}", stacklevel=2)
        given[new] = value if given[new] is None else given[new]


def _setting_options() -> Iterator[Parameter]:
    """Yield an option for each setting, as Typer reads it: names, types, defaults and help are those of the settings."""
    for name, setting in SETTINGS.items():
        kind = setting.type
        while get_origin(kind) is not Literal and get_args(kind):  # without rules and None
            kind = get_args(kind)[0]
        choice = get_args(kind)
        option = Option(_flag(name, kind), help=_help(setting), metavar=f"[{'|'.join(choice)}]" if choice else None)
        annotation: Any = Annotated[(str if choice else kind) | None, option]
        yield Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


def _flag(name: str, kind: Any) -> str:
    words = name.replace("_", "-")
    return f"--{words}/--{OPPOSITE.get(name, f'no-{words}')}" if kind is bool else f"--{words}"


def _help(setting: SettingField) -> str:
    if setting.default is None or isinstance(setting.default, bool):
        return setting.description
    shown = f"{setting.default:g}" if isinstance(setting.default, float) else setting.default
    return f"{setting.description} [default: {shown}]"


_config, *_others, _ = signature(serve, eval_str=True).parameters.values()
serve.__signature__ = Signature([_config, *_setting_options(), *_others])  # type: ignore[attr-defined]


def _run(settings: ServiceSettings, json: bool) -> None:
    import uvloop

    from bilinq.live import tracing
    from bilinq.live.logs import log_to
    from bilinq.live.run import run

    log_to(form=settings.log_format)
    with tracing.start():
        uvloop.run(run(settings, lambda address: _show_address(address, json)))


def _show_address(address: str, json: bool) -> None:
    if json:
        print_structs({"address": address}, indent=0)
    else:
        typer.echo(f"bilinq serves {address}")
