"""`bilinq work`: a command that serves jobs of the live service."""

from __future__ import annotations

from typing import Annotated

import typer


def work(
    server_class: Annotated[str, typer.Argument(metavar="CLASS", help="Class of the servers that run the command.")],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="Program and its arguments, for each job.")
    ],
    reward: Annotated[
        str,
        typer.Option(
            help="exit: the highest for exit code 0; duration: the shorter the better; last-line: the last line of output, "
            'a number or {"reward": x, "done": true, "result": any}.'
        ),
    ] = "exit",
    low: Annotated[float, typer.Option(help="Least reward, as the service has it.")] = 0.0,
    high: Annotated[float, typer.Option(help="Highest reward, as the service has it.")] = 1.0,
    half: Annotated[
        float, typer.Option(help="For --reward duration: seconds that earn the middle of low and high.")
    ] = 10.0,
    limit: Annotated[float | None, typer.Option(help="Seconds after which a command is ended and has failed.")] = None,
    servers: Annotated[int, typer.Option(help="How many commands at a time.")] = 1,
    name: Annotated[
        str | None, typer.Option(help="Name of the server; the same after a crash frees what it held at once.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Address of the service; BILINQ_URL unless given.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Key with scope work; better in BILINQ_KEY, where other users do not see it.")
    ] = None,
) -> None:
    """Run a command for each job that the service gives to this server.

    The command reads the job's payload, JSON, from its standard input, and finds BILINQ_JOB_ID, BILINQ_JOB_CLASS,
    BILINQ_UNITS_LEFT, BILINQ_ATTEMPTS and BILINQ_FENCE in its environment. Exit code 0 is success; anything else gives
    the job back. SIGTERM or Ctrl-C lets running commands end first; a second one ends them and gives their jobs back.
    """
    import sys

    from bilinq.client import Client, Worker
    from bilinq.client.command import Command
    from bilinq.client.held import reward_of
    from bilinq.live.logs import log_to

    rule = reward_of(reward, low, high, half)
    log_to(sys.stderr)
    with Client(url, key) as client, Command(command, rule, limit) as function:
        Worker(client, server_class, function, name, servers=servers).run()
