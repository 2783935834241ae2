"""`bilinq gateway`: language models behind one address."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from bilinq.commands.shared import Json, print_json
from bilinq.errors import BadInput


def gateway(
    config: Annotated[Path, Option(help="TOML file with settings; `bilinq init gateway` writes one.")] = Path(
        "gateway.toml"
    ),
    demo: Annotated[bool, Option("--demo", help="Start fake back ends and traffic, on this computer only.")] = False,
    host: Annotated[str | None, Option(help="Address to listen on. [default: that of the file]")] = None,
    port: Annotated[
        int | None, Option(help="Port to listen on; 0 is any free one. [default: that of the file]")
    ] = None,
    shadow: Annotated[
        bool | None, Option("--shadow/--no-shadow", help="Only report what the scheduler would have done.")
    ] = None,
    new_key: Annotated[
        bool, Option("--new-key", help="Print a new key for a tenant and its SHA-256, and exit.")
    ] = False,
    check: Annotated[bool, Option("--check", help="Check the settings and exit.")] = False,
    json: Json = False,
) -> None:
    """Run a gateway for language models.

    It has an OpenAI-compatible API and learns which back end suits which request; see docs/gateway.md.
    """
    if new_key:
        from bilinq.live.keys import hash_key, make_key

        key = make_key()
        made = {"key": key, "key_sha256": hash_key(key)}
        print_json(made) if json else typer.echo(f'key: {key}\nkey_sha256 = "{made["key_sha256"]}"')
        return
    for package in ("uvicorn", "httptools", "httpcore", "uvloop"):
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
    given = {name: value for name, value in {"host": host, "port": port, "shadow": shadow}.items() if value is not None}
    if demo:
        import uvloop

        from bilinq.gateway.demo import run_demo

        uvloop.run(run_demo(typer.echo, given))
        return
    _serve(config, given, check, json)


def _serve(file: Path, given: dict[str, Any], check: bool, json: bool) -> None:
    import uvloop

    from bilinq.gateway.config import Config, load
    from bilinq.gateway.run import check_secrets, run
    from bilinq.live import tracing
    from bilinq.live.logs import log_to

    settings = load(file)
    try:
        settings = Config(**{**{name: getattr(settings, name) for name in settings.__struct_fields__}, **given})
    except ValueError as error:
        raise BadInput(str(error)) from None
    check_secrets(settings)
    if check:
        found = {"file": file, "backends": len(settings.backend), "tenants": len(settings.tenant)}
        text = f"{file}: {found['backends']} back ends and {found['tenants']} tenants; the settings are valid"
        print_json(found) if json else typer.echo(text)
        return
    log_to(form=settings.log_format)
    with tracing.start():
        uvloop.run(run(settings, _announce_json if json else _announce))


def _announce(address: str) -> None:
    typer.echo(f"bilinq gateway serves {address}/v1; the page is {address}/")


def _announce_json(address: str) -> None:
    print_json({"address": f"{address}/v1", "page": f"{address}/"})
