"""The paper's basic experiment: SABR against UGDA-OL, every replication on its own random instance.

Run it with ``python examples/basic_experiment.py --out out``: it prints a table and draws `out/basic.png`.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress, TaskID

from bilinq import KnownRewards, Policy, Problem, Runs, Sabr, UgdaOl, simulate
from bilinq.arrays import Array
from bilinq.commands.tables import show, summary_table

V = 57.99
"""The authors' choice for this experiment, `bilinq.theory.V_published`."""
DRAWS: dict[str, Any] = {"assignment": "independent", "limit": "none"}  # as in the paper, two servers may pick one job

POLICIES: dict[str, Policy] = {
    "UGDA-OL": UgdaOl(learning="job", V=V, **DRAWS),
    "SABR, published radius": Sabr(radius="published", V=V, **DRAWS),
    "SABR": Sabr(V=V, **DRAWS),
    "rewards known": KnownRewards(V=V, **DRAWS),
}
COLOURS = ("#d55e00", "#56b4e9", "#0072b2", "#444444")
"""From the palette of Okabe and Ito, which colour-blind readers can distinguish; grey for the reference."""
SHOWN = ("regret", "queue", "reward", "wait", "wait_p95")


def run_all(problems: list[Problem], slots: int, seed: int) -> dict[str, Runs]:
    """Run every policy on the same instances with the same arrivals."""
    results = {}
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for name, policy in POLICIES.items():
            report = reporter(bar, bar.add_task(name, total=slots))
            results[name] = simulate(problems, policy, slots=slots, seed=seed, progress=report)
            if not results[name].complete:
                raise KeyboardInterrupt
    return results


def reporter(bar: Progress, task: TaskID) -> Callable[[int, int], None]:
    """Return a callback that updates the progress bar."""
    return lambda done, total: bar.update(task, completed=done, total=total)


def draw_band(axes: Axes, values: Array, name: str, colour: str, dashed: bool) -> None:
    """Draw the mean of values (R, T) over slots with a band of 1.96 standard errors, as in the paper."""
    slot = np.arange(1, values.shape[1] + 1)
    mean = values.mean(axis=0)
    half = 1.96 * values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros_like(mean)
    axes.fill_between(slot, mean - half, mean + half, color=colour, alpha=0.12, linewidth=0, zorder=1)
    style = (0, (4, 1.5)) if dashed else "-"
    axes.plot(slot, mean, color=colour, linewidth=1.4 if dashed else 1.9, linestyle=style, label=name, zorder=3)


def draw(results: dict[str, Runs]) -> Figure:
    """Return the figure: cumulative regret and total queue over time."""
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, runs), colour in zip(results.items(), COLOURS, strict=True):
        known = name == "rewards known"
        draw_band(left, runs.regret, name, colour, known)
        draw_band(right, runs.queue.sum(axis=2).astype(np.float64), name, colour, known)
    left.set_title("Cumulative regret", loc="left")
    right.set_title("Jobs in the system", loc="left")
    left.axhline(0.0, color="#bbbbbb", linewidth=0.8, zorder=0)
    right.set_ylim(bottom=0.0)
    first = next(iter(results.values()))
    for axes in (left, right):
        axes.set_xlabel("slot")
        axes.set_xlim(0, first.slots)
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), frameon=False)
    note = f"means over {first.replications} random instances, with 95 % bands"
    figure.supxlabel(note, fontsize="small", color="#666666")
    return figure


def main() -> None:
    """Run the experiment with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the figure")
    parser.add_argument("--replications", type=int, default=10)
    parser.add_argument("--slots", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1, help="seed of the runs and of the first instance")
    options = parser.parse_args()
    problems = [Problem.synthetic(seed=options.seed + k) for k in range(options.replications)]
    results = run_all(problems, options.slots, options.seed)
    summaries = {name: runs.summary() for name, runs in results.items()}
    shown = {name: {key: summary[key] for key in SHOWN} for name, summary in summaries.items()}
    show(summary_table(f"{options.replications} random instances, {options.slots} slots, V = {V}", shown))
    options.out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"font.size": 10.0, "axes.titlesize": 11.0}):
        draw(results).savefig(options.out / "basic.png", dpi=160)
    print(f"figure: {options.out / 'basic.png'}")


if __name__ == "__main__":
    main()
