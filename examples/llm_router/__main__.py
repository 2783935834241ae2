"""`python -m examples.llm_router --config FILE` starts the router; `--demo` shows it at work on fake back ends."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from bilinq.errors import BilinqError

from .app import App
from .config import Config, load
from .dispatcher import warm
from .router import Router
from .serving import serving


async def serve(config: Config) -> None:
    """Serve until SIGINT or SIGTERM; requests that are being answered may end."""
    router, stop = Router(config), asyncio.Event()
    warm()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(App(router), config.host, config.port) as address:
        print(f"the router serves {address}/v1", flush=True)
        await stop.wait()
    await router.close()


def main() -> None:
    """Run the router with the options of the command line."""
    parser = argparse.ArgumentParser(prog="llm_router", description="An OpenAI-compatible router that learns.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, help="settings, see router.toml")
    what.add_argument("--demo", action="store_true", help="four fake back ends and traffic for them")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the demo runs")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    given = {name: value for name in ("host", "port") if (value := getattr(options, name)) is not None}
    try:
        if options.demo:
            from .demo import demo

            uvloop.run(demo(options.seconds, **given))
        else:
            uvloop.run(serve(msgspec.structs.replace(load(options.config), **given)))
    except KeyboardInterrupt:
        pass
    except (BilinqError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
