"""The command line. What takes time to import is imported by the command that needs it."""

import sys
import warnings
from json import loads
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bilinq.commands import keys, trace
from bilinq.commands.backup import backup, restore
from bilinq.commands.distributed import distributed
from bilinq.commands.paper import paper
from bilinq.commands.serve import serve
from bilinq.commands.submit import submit
from bilinq.commands.top import top
from bilinq.commands.work import work
from bilinq.errors import BadInput, BilinqError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class Commands(TyperGroup):
    """The commands, with one place where errors become a line on standard error and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            try:
                return super().invoke(ctx)
            except BilinqError as error:
                typer.echo(f"error: {error}", err=True)
                raise typer.Exit(2) from None


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"warning: {message}", err=True)


app = typer.Typer(
    cls=Commands,
    help="A scheduler that learns which kind of job pays best on which kind of server while every queue stays short.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table for people.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"bilinq {version('bilinq')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A scheduler that learns which kind of job pays best on which kind of server while every queue stays short."""


@app.command()
def allocate(
    file: Annotated[str, typer.Argument(help="A JSON file, or - for standard input.")],
    json: Json = False,
) -> None:
    """Share the servers of one slot among the waiting jobs.

    The file holds {"queue": [..], "reward": [[..]], "capacity": [..], "V": x, "gamma": x} and, if wanted, "weight": [..]
    and "limit": [..], where null is no limit. The answer is {"expected": [[..]], "price": [..], "residual": x}.
    """
    from bilinq.commands import requests

    request, answer = requests.answer(file)
    if json:
        _print_json({"expected": answer.expected, "price": answer.price, "residual": answer.residual}, indent=None)
        return
    from bilinq.commands import tables

    tables.show(tables.allocation_table(request, answer))


@app.command()
def simulate(
    problem: Annotated[Path | None, typer.Option(help="A problem file, JSON or TOML; else one is drawn.")] = None,
    job_classes: Annotated[int | None, typer.Option(help="Of a drawn problem; 10 unless given.")] = None,
    server_classes: Annotated[int | None, typer.Option(help="Of a drawn problem; 2 unless given.")] = None,
    dimension: Annotated[str | None, typer.Option(help="Length of the feature vectors, or of both: 2 or 2,3.")] = None,
    servers: Annotated[str | None, typer.Option(help="In all, or in each class: 4 or 1,3.")] = None,
    traffic: Annotated[float | None, typer.Option(help="Traffic intensity in all; 1 unless given.")] = None,
    service_rate: Annotated[float | None, typer.Option(help="Chance that a slot completes a job.")] = None,
    noise: Annotated[float | None, typer.Option(help="Standard deviation of rewards; 0.1 unless given.")] = None,
    problem_seed: Annotated[int | None, typer.Option(help="Seed of the drawn problem; 0 unless given.")] = None,
    instances: Annotated[
        str,
        typer.Option(help="fixed: one problem for all replications; random: replication k draws its own, seed + k."),
    ] = "fixed",
    arrivals: Annotated[str, typer.Option(help="bernoulli, poisson or markov-modulated.")] = "bernoulli",
    policy: Annotated[
        str, typer.Option(help="sabr, ugda-ol, known-rewards, max-weight, greedy, random, first-come or static-split.")
    ] = "sabr",
    option: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Option of the policy, such as V=58; repeat.")
    ] = None,
    slots: Annotated[int, typer.Option(help="Number of slots.")] = 500,
    replications: Annotated[int, typer.Option(help="Number of independent runs.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 1,
    json: Json = False,
) -> None:
    """Run a policy and print regret, queues, costs and waits with 95 % intervals."""
    from bilinq.arrays import count
    from bilinq.commands import tables
    from bilinq.experiments.settings import make_setting
    from bilinq.policies.registry import make_policy
    from bilinq.simulation import simulate as run

    drawn = {
        "job_classes": job_classes, "server_classes": server_classes, "dimension": _whole("dimension", dimension),
        "servers": _whole("servers", servers), "traffic": traffic, "service_rate": service_rate, "noise": noise,
        "seed": problem_seed, "file": None if problem is None else str(problem),
    }  # fmt: skip
    given = {key: value for key, value in drawn.items() if value is not None} | {"instances": instances}
    options = dict(map(_option, option or []))
    chosen = make_policy(policy, options)
    setting = make_setting(given, arrivals)
    problems = setting.problems(seed, range(count("replications", replications)))
    with tables.Bar("slots") as bar:
        runs = run(
            problems,
            chosen,
            slots=slots,
            replications=replications,
            seed=seed,
            arrivals=setting.arrivals(),
            progress=bar,
        )
    summary = runs.summary()
    if json:
        about = {"policy": policy, "options": options, "problem": given, "slots": runs.slots}
        end = {"seconds": runs.seconds, "complete": runs.complete, "run": runs.settings}
        _print_json(about | {"replications": replications, "seed": seed} | summary | end)
    else:
        tables.show(tables.summary_table(f"{replications} runs of {runs.slots} slots", {policy: summary}))
    if not runs.complete:
        typer.echo(f"interrupted after {runs.slots} of {slots} slots", err=True)
        raise typer.Exit(INTERRUPTED)


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="A sweep in TOML; see docs/howto-sweep.md.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the results; default: out/NAME-OF-FILE.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default: one for each core.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run everything again, even finished cells.")] = False,
    engine: Annotated[
        str, typer.Option(help="Where simulations run: processes, or ray for a Ray cluster.")
    ] = "processes",
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster, host:port or auto; default: a private Ray.")
    ] = None,
    json: Json = False,
) -> None:
    """Run every cell of a grid on all cores; finished cells are not run again."""
    from bilinq.commands import tables
    from bilinq.experiments import sweep as sweeps

    plan = sweeps.load(file)
    folder = out or Path("out") / file.stem
    try:
        with tables.Bar("slots") as bar:
            results = sweeps.run(plan, folder, workers, bar, fresh=fresh, engine=engine, address=address)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; finished cells are in {folder}, run the same command to continue", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if json:
        _print_json({"name": plan.name, "out": folder, "cells": [result.document() for result in results]})
    else:
        tables.show(tables.sweep_table(plan.name, results))


app.command()(paper)
app.command()(distributed)
app.add_typer(trace.app, name="trace")
app.command()(serve)
app.add_typer(keys.app, name="keys")
app.command()(backup)
app.command()(restore)
app.command()(submit)
app.command()(work)
app.command()(top)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="JSON file for the results.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Name of a benchmark to run; repeat.")] = None,
    json: Json = False,
) -> None:
    """Measure speed against other tools; needs the source tree. Other options go to `python -m bench`."""
    import subprocess
    import tempfile

    root = Path(__file__).resolve().parents[3]
    if not (root / "bench" / "__main__.py").is_file():
        raise BadInput(f"benchmarks need the source tree of bilinq; no bench/__main__.py in {root}")
    with tempfile.TemporaryDirectory() as folder:
        target = out.resolve() if out else Path(folder) / "bench.json"
        words = [part for name in only or [] for part in ("--only", name)]
        words += ["--out", str(target)] if out or json else []
        command = [sys.executable, "-m", "bench", *words, *context.args]
        code = subprocess.run(command, cwd=root, stdout=sys.stderr if json else None, check=False).returncode
        if json and not code:
            typer.echo(target.read_text(encoding="utf-8").rstrip())
    raise typer.Exit(code)


def _option(text: str) -> tuple[str, Any]:
    """Return key and value of `key=value`; values are JSON where they can be, and words otherwise."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"a setting must read key=value; got {text!r}")
    try:
        return key.strip(), loads(value)
    except ValueError:
        return key.strip(), value.strip()


def _whole(name: str, text: str | None) -> int | list[int] | None:
    """Return one whole number, or several between commas."""
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{name} must be whole numbers with commas between them; got {text!r}") from None
    return numbers[0] if len(numbers) == 1 else numbers


def _print_json(value: Any, indent: int | None = 2) -> None:
    from bilinq.jsonable import to_json

    typer.echo(to_json(value, indent))


if __name__ == "__main__":
    app()
