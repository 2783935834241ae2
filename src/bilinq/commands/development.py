"""`bilinq bench` and `bilinq warm`: commands for those who measure or install bilinq."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from bilinq.commands.shared import Json, print_json
from bilinq.errors import BadInput


def bench(
    context: typer.Context,
    out: Annotated[Path | None, Option(help="JSON file for the results.")] = None,
    only: Annotated[list[str] | None, Option(help="Name of a benchmark to run; repeatable.")] = None,
    json: Json = False,
) -> None:
    """Measure speed against other tools (needs the source tree).

    All other options are passed to `python -m bench`.
    """
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


def warm(json: Json = False) -> None:
    """Compile the kernels ahead of first use.

    They are kept in the package, or in the cache folder of the user, so that the next start is quick. Otherwise each
    kernel is compiled when it is first called.
    """
    import time

    began = time.perf_counter()
    steps = list(_steps())
    for number, (name, step) in enumerate(steps, 1):
        typer.echo(f"compiling kernels, step {number} of {len(steps)}: {name}", err=json)
        step()
    seconds = time.perf_counter() - began
    if json:
        print_json({"steps": len(steps), "seconds": seconds})
    else:
        typer.echo(f"kernels ready after {seconds:.1f} s")


def _steps() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield calls that together reach every kernel, with the array types that the package passes."""
    import numpy as np

    from bilinq import Greedy, Policy, Problem, Sabr, UgdaOl, allocate, simulate

    reward, large = [[0.2, 0.9], [0.5, 0.4]], np.sin(np.arange(600.0)).reshape(50, 12)
    yield "allocation of a small program", partial(allocate, [9.0, 9.0], reward, [1.0, 1.0], V=1.0)
    yield "allocation of a large program", partial(allocate, np.full(50, 9.0), large, np.ones(12), 1.0)
    yield "allocation with limits", partial(allocate, np.full(50, 9.0), large, np.ones(12), 1.0, limit=np.ones(50))
    tall = np.sin(np.arange(27_000.0)).reshape(9_000, 3)
    yield "allocation of one job a row", partial(allocate, np.ones(9_000), 0.9 * tall, np.ones(3), 2_000.0)
    policies: dict[str, Policy] = {
        "Sabr": Sabr(), "Sabr with estimated noise": Sabr(noise="estimate"), "UgdaOl": UgdaOl(), "Greedy": Greedy(),
    }  # fmt: skip
    for name, policy in policies.items():
        yield f"simulation of {name}", partial(simulate, Problem.synthetic(seed=1), policy, slots=3)
    yield "jobs of several units", partial(simulate, Problem.synthetic(seed=1), Greedy(), slots=3, service="units")
    yield "a decision of the scheduler", _run_scheduler
    yield "nodes without delays", partial(_run_nodes, (0, 0))
    yield "nodes with delays", partial(_run_nodes, (1, 3))


def _run_scheduler() -> None:
    from bilinq import JobClass, Sabr, Scheduler, ServerClass
    from bilinq.scheduler.warm import warm

    classes = [JobClass("job", [1.0])], [ServerClass("a", [1.0]), ServerClass("b", [1.0])]
    for policy in (None, Sabr()):
        warm(Scheduler(*classes, policy=policy), "job", {"a": 1, "b": 1}, 0.0, own=policy is None)


def _run_nodes(delay: tuple[float, float]) -> None:
    from bilinq import distributed

    system = distributed.System.synthetic(delay=delay)
    distributed.Network(system, 0.01, rule="delayed").advance(2)
    distributed.integrate(system, 0.01, until=1.0)
