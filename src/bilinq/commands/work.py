"""`bilinq work`: serve jobs of the live service with a command."""

from typing import Annotated

from typer import Argument, Option

from bilinq.commands.shared import Url


def work(
    server_class: Annotated[str, Argument(metavar="CLASS", help="Server class of this machine.")],
    command: Annotated[list[str], Argument(metavar="-- COMMAND", help="Program and arguments to run for each job.")],
    reward: Annotated[
        str,
        Option(
            help="exit: the highest reward for exit code 0; duration: more reward for less time; last-line: the last "
            'line of output, a number or {"reward": x, "done": true, "result": any}.'
        ),
    ] = "exit",
    low: Annotated[float, Option(help="Lowest reward; the same as in the settings of the service.")] = 0.0,
    high: Annotated[float, Option(help="Highest reward; the same as in the settings of the service.")] = 1.0,
    half: Annotated[float, Option(help="For duration: seconds that earn the mean of --low and --high.")] = 10.0,
    limit: Annotated[float | None, Option(help="Seconds after which a command is stopped and fails.")] = None,
    servers: Annotated[int, Option(help="Number of commands that may run at the same time.")] = 1,
    name: Annotated[str | None, Option(help="Server name; after a crash the same name frees its jobs at once.")] = None,
    url: Url = None,
    key: Annotated[str | None, Option(help="Key with scope work. [default: BILINQ_KEY, hidden from others]")] = None,
) -> None:
    """Run a command for each job that this server gets.

    The command reads the payload of the job as JSON from standard input. The environment contains BILINQ_JOB_ID,
    BILINQ_JOB_CLASS, BILINQ_UNITS_LEFT, BILINQ_ATTEMPTS and BILINQ_FENCE. Exit code 0 is success; any other code fails
    the attempt and returns the job to its queue. After SIGTERM or Ctrl-C running commands may finish; a second signal
    stops them and returns their jobs.
    """
    import sys

    from bilinq.client import Client, Worker
    from bilinq.client.command import Command, reward_rule
    from bilinq.live.logs import log_to

    rule = reward_rule(reward, low, high, half)
    log_to(sys.stderr)
    with Client(url, key) as client, Command(command, rule, limit) as function:
        Worker(client, server_class, function, name, servers=servers).run()
