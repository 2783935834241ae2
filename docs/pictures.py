"""Draw the pictures of `concepts.md` and of the tutorials: `python docs/pictures.py` writes them beside the pages.

Pictures that show numbers compute them with bilinq; the same machine draws the same files.
"""

import argparse
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

import bilinq
from bilinq.arrays import Array
from bilinq.lab import style
from bilinq.lab.style import AMBER, BLUE, FAINT, GREEN, GREY, INK, ORANGE, SKY
from bilinq.routing.arrivals import poisson
from bilinq.routing.routers import LeastBusy
from bilinq.scheduler import Observation

DOCS = Path(__file__).parent
PAPER = "#ffffff"
CHAT, CODE = SKY, AMBER
"""Jobs of two classes have these colours in every picture."""
SERVERS = ("small", "large")


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure of 9 x `height` inches whose axes are `width` units wide, without ticks, for a drawing by hand."""
    figure = Figure(figsize=(9.0, height), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0.0, width), ylim=(0.0, width * height / 9.0))
    axes.axis("off")
    return figure, axes


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str = FAINT) -> None:
    """Draw a box with rounded corners and a text in its middle."""
    shape = FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", fc=colour, ec=GREY, lw=0.8, zorder=2
    )
    axes.add_patch(shape)
    axes.text(x + width / 2.0, y + height / 2.0, text, ha="center", va="center", zorder=4)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK, bend: float = 0.0
) -> None:
    """Draw an arrow, bent to the left by a part of its length."""
    look = {"arrowstyle": "-|>", "color": colour, "lw": 1.3, "shrinkA": 2.0, "shrinkB": 2.0}
    axes.annotate("", end, start, arrowprops=look | {"connectionstyle": f"arc3,rad={bend}"}, zorder=3)


def jobs(axes: Axes, x: float, y: float, number: int, colour: str) -> None:
    """Draw a queue of jobs; the oldest is at the right."""
    for k in range(number):
        axes.add_patch(Rectangle((x + 0.36 * k, y), 0.28, 0.42, fc=colour, ec=INK, lw=0.7, zorder=3))


def overview() -> Figure:
    """Draw queues, the scheduler, servers, leases, rewards, and a pair that is not eligible."""
    figure, axes = canvas(12.0, 3.6)
    for y, name, number, colour in ((3.3, "chat", 5, CHAT), (1.9, "code", 3, CODE), (0.5, "vision", 2, "#d9b3cc")):
        axes.text(0.1, y + 0.55, f"queue of class {name}")
        jobs(axes, 0.1 + 0.36 * (5 - number), y, number, colour)
        arrow(axes, (2.0, y + 0.2), (3.35, 2.15 + 0.25 * (y - 1.9)))
    box(axes, 3.4, 1.3, 2.1, 1.7, "scheduler\n\nwho gets\nwhich job?", "#e8f1f8")
    for y, name, colour in ((2.9, "large", CODE), (0.5, "small", CHAT)):
        axes.text(8.4, y + 1.35, f"server class {name}")
        for k in range(2):
            box(axes, 8.4 + 1.25 * k, y, 1.05, 1.15, "", PAPER)
        jobs(axes, 8.62, y + 0.36, 1, colour)
        axes.text(8.92, y - 0.28, "busy", ha="center", color=GREY)
        axes.text(10.17, y - 0.28, "idle", ha="center", color=GREY)
        side = float(np.sign(y - 1.0))
        arrow(axes, (5.55, 2.15 + 0.55 * side), (8.3, y + 0.575 + 0.3 * side))
        arrow(axes, (8.3, y + 0.575 - 0.3 * side), (5.55, 2.15 + 0.15 * side), GREEN)
    axes.text(6.6, 3.55, "job, on a lease", ha="center")
    axes.text(6.75, 2.08, "reward", ha="center", color=GREEN, weight="bold")
    axes.text(3.4, 0.35, "vision jobs may only be\nserved by large servers", va="center", color=GREY)
    return figure


def slots() -> Figure:
    """Draw one job over time: it waits, is served on a lease that is extended, ends, and is rewarded late."""
    figure, axes = canvas(14.0, 2.9)
    line, top = 0.9, 3.9
    for k in range(13):
        axes.plot([1.0 + k, 1.0 + k], [line, top - 0.35], color=FAINT, lw=0.8, zorder=0)
        axes.text(1.0 + k, line - 0.35, str(k), ha="center", color=GREY)
    axes.text(13.4, line - 0.35, "slots", color=GREY)
    axes.add_patch(Rectangle((2.0, 2.5), 3.0, 0.5, fc=PAPER, ec=GREY, ls="--", lw=0.9))
    axes.add_patch(Rectangle((5.0, 2.5), 5.0, 0.5, fc=CODE, ec=INK, lw=0.8))
    for x, text in ((3.5, "waits in its queue"), (7.5, "is served")):
        axes.text(x, 2.75, text, ha="center", va="center")
    for x, text in ((2.0, "submitted"), (5.0, "assigned"), (10.0, "finished")):
        arrow(axes, (x, top - 0.25), (x, 3.05))
        axes.text(x, top - 0.15, text, ha="center")
    arrow(axes, (12.0, top - 0.25), (12.0, 1.75), GREEN)
    axes.text(12.0, top - 0.15, "rewarded", ha="center", color=GREEN, weight="bold")
    axes.plot([5.0, 10.0], [1.6, 1.6], color=BLUE, lw=2.0, solid_capstyle="butt")
    axes.plot([5.0, 6.6667, 8.3333], [1.6] * 3, "o", color=BLUE, ms=5)
    axes.text(4.85, 1.6, "lease", ha="right", va="center", color=BLUE)
    axes.text(10.15, 1.6, "extended while\nthe job runs", va="center", color=BLUE)
    return figure


def look_ahead() -> Figure:
    """Draw the choice between a server that is idle and a better one that is busy."""
    figure, axes = canvas(14.0, 2.3)
    for y, name in ((2.2, "large"), (1.0, "small")):
        axes.text(0.9, y + 0.3, name, ha="right", va="center")
    axes.add_patch(Rectangle((1.2, 2.2), 5.0, 0.6, fc=FAINT, ec=GREY, zorder=2))
    axes.add_patch(Rectangle((6.2, 2.2), 4.0, 0.6, fc=CODE, ec=INK, zorder=2))
    axes.add_patch(Rectangle((4.0, 1.0), 4.0, 0.6, fc=PAPER, ec=GREY, ls="--", zorder=2))
    for x, y, text in ((2.6, 2.5, "busy with another job"), (8.2, 2.5, "reward 0.8"), (6.0, 1.3, "reward 0.5")):
        axes.text(x, y, text, ha="center", va="center", zorder=4)
    axes.plot([4.0, 4.0], [0.6, 3.1], color=INK, lw=1.2, zorder=3)
    axes.text(4.0, 0.25, "now: a code job waits, a small server is idle", ha="center")
    axes.text(10.4, 2.5, "wait: better, but later", va="center", color=GREY)
    axes.text(8.2, 1.3, "start now: worse, but at once", va="center", color=GREY)
    return figure


def workload() -> bilinq.Workload:
    """Return jobs of the small world on two servers of each class at load 0.8, with single results 0 or 1."""
    rng = np.random.default_rng(1)
    kind = rng.integers(2, size=4000)
    quality = np.array([[0.8, 0.9], [0.2, 0.8]])[kind]
    return bilinq.Workload(
        arrival=poisson(1.0, kind.size, rng), reward=(rng.random((kind.size, 2)) < quality).astype(float), duration=4.0,
        servers={"small": 2, "large": 2}, job_class=np.array(["chat", "code"])[kind],
    ).at_load(0.8)  # fmt: skip


def target_wait() -> Figure:
    """Draw what a longer target wait earns, and whether the target is met, over five replays each."""
    targets = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
    jobs_of = workload()
    runs = [[_run(jobs_of.shuffled(seed), bilinq.SchedulerRouter(target_wait=T)) for seed in range(5)] for T in targets]
    reward, wait = np.mean(runs, axis=1).T
    plain = np.mean([_run(jobs_of.shuffled(seed), LeastBusy()) for seed in range(5)], axis=0)
    figure, (left, right) = style.panels(1, 2, height=3.0)
    left.plot(wait, reward, "o-", color=BLUE, lw=2.0, ms=4.5, label="bilinq, target wait 0.5 to 16")
    left.plot(plain[1], plain[0], "s", color=ORANGE, label="least busy server")
    right.plot(targets, targets, color=GREY, ls=style.DASHED, lw=1.2, label="target")
    right.plot(targets, wait, "o-", color=BLUE, lw=2.0, ms=4.5, label="mean wait")
    ticks = [0.5, 1, 2, 4, 8, 16]
    for axis in (left.set, right.set):
        axis(xscale="log", xticks=ticks, xticklabels=[f"{x:g}" for x in ticks])
    right.set(yscale="log", yticks=ticks, yticklabels=[f"{x:g}" for x in ticks])
    for axes in (left, right):
        axes.minorticks_off()
        axes.legend(loc="lower right")
    style.label(left, "Longer waits earn more, up to a point", "mean wait in slots", "reward per job")
    style.label(right, "Waits follow the target where the load allows", "target wait in slots", "slots")
    return figure


def _run(jobs_of: bilinq.Workload, router: bilinq.Router) -> tuple[float, float]:
    found = bilinq.replay(jobs_of, router, seed=1).summary()
    return found["reward"], found["wait"]


def features() -> Figure:
    """Draw what a scheduler has learnt about requests of different lengths, and a table of eligible pairs."""
    scheduler = bilinq.Scheduler([bilinq.JobClass("request")], [bilinq.ServerClass(x) for x in SERVERS],
                                 reward=(0.0, 1.0), exploration="none", seed=7)  # fmt: skip
    rng = np.random.default_rng(1)
    truth = {"small": (0.95, -0.7), "large": (0.85, 0.0)}
    for server, (level, slope) in truth.items():
        for length in rng.random(40):
            reward = float(np.clip(level + slope * length + 0.1 * rng.standard_normal(), 0.0, 1.0))
            scheduler.replay([Observation("request", server, reward=reward, duration=4.0, features=[length])])
    scheduler.assign({})  # what was replayed counts from the next slot on
    figure, (left, right) = style.panels(1, 2, height=3.0)
    lengths = np.linspace(0.0, 1.0, 21)
    found = np.array([_estimates(scheduler, length) for length in lengths])  # (length, server, mean and error)
    for j, (server, colour) in enumerate((("small", SKY), ("large", ORANGE))):
        mean, error = found[:, j].T
        left.fill_between(lengths, mean - 2.0 * error, mean + 2.0 * error, color=colour, alpha=0.2, lw=0)
        left.plot(lengths, mean, color=colour, lw=2.0, label=server)
        level, slope = truth[server]
        left.plot(lengths, level + slope * lengths, color=GREY, ls=style.DASHED, lw=1.0, label="truth" if j else None)
    left.set(ylim=(0.0, 1.1))
    left.legend(loc="lower left")
    style.label(left, "Learnt from 40 jobs on each server class", "length of the request", "expected reward")
    _eligibility(right)
    return figure


def _estimates(scheduler: bilinq.Scheduler, length: float) -> Array:
    """Return the expected reward of a request on each server class, small first, with its standard error."""
    job = scheduler.submit("request", features=[length])
    options = {one.server_class: (one.value, one.uncertainty) for one in scheduler.explain(job).options}
    scheduler.cancel(job)
    return np.array([options[name] for name in SERVERS])


def _eligibility(axes: Axes) -> None:
    rows, columns = ("chat", "code", "vision"), ("small", "large", "batch")
    allowed = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 0]])
    for (i, j), yes in np.ndenumerate(allowed):
        axes.add_patch(Rectangle((j, 2 - i), 0.94, 0.9, fc="#cfe6da" if yes else PAPER, ec=FAINT))
        axes.text(
            j + 0.47, 2.45 - i, "may serve" if yes else "never", ha="center", va="center", color=INK if yes else GREY
        )
    axes.set(xlim=(-0.05, 3.0), ylim=(-0.05, 3.0), xticks=np.arange(3) + 0.47, yticks=np.arange(3) + 0.45)
    axes.set(xticklabels=columns, yticklabels=rows[::-1])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    style.label(axes, "Eligible pairs", "", "")


def tradeoff() -> Figure:
    """Draw the figure of the tutorial on simulation, by running its blocks up to that figure."""
    page = (DOCS / "tutorial-simulate.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    with redirect_stdout(StringIO()):
        for block in blocks:
            exec(block.replace("figure.savefig(", "(lambda *_, **__: None)("), names)
    figure: Figure = names["figure"]
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "concepts-overview": overview,
    "concepts-slots": slots,
    "concepts-look-ahead": look_ahead,
    "concepts-target-wait": target_wait,
    "concepts-features": features,
    "tutorial-tradeoff": tradeoff,
}


def draw(out: Path) -> list[Path]:
    """Draw all pictures into a folder and return their paths."""
    paths = []
    for name, picture in PICTURES.items():
        with style.applied():
            figure = picture()
            paths.append(out / f"{name}.png")
            figure.savefig(paths[-1], dpi=130, facecolor=PAPER, metadata={"Software": None})
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=DOCS)
    for path in draw(parser.parse_args().out):
        print(path)
