"""Training jobs on three kinds of GPU, with measured speeds: the gain of learning over first come, first served."""

import math
from typing import Literal

import numpy as np

from bilinq import style
from bilinq.display import number
from bilinq.experiments import Fixed, PlannedRun, Record, Setting, SizedJobs
from bilinq.lab import effects
from bilinq.lab.claims import Claim, Finding, above, below
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.presets import POSTERIOR
from bilinq.policies import FirstCome, Greedy, KnownRewards, Policy, Random, Sabr
from bilinq.style import Axes, Drawing, Look
from bilinq.traces import gpu_table

LOADS = (0.5, 0.7, 0.9)
EARLY = 100  # rounds after which features are judged first
MOST = 10  # replications at most; all share the problem
BUSY = 1.0 / (Sabr().gamma + 1.0)
"""Up to this V, SABR keeps no server idle while a job waits, as rewards are at least -1."""
STEPS = (1, 4, 8)  # multiples of that V
MARGIN = 1.02  # times in the system up to this factor longer count as no longer
SABR, KNOWN, TABLE, GREEDY, FIRST, NEWEST, RANDOM = (
    "SABR", "rewards known", "SABR, no features", "greedy", "first come", "first come, newest GPU", "random",
)  # fmt: skip
CURVES = {SABR: Look(style.BLUE, marker="o"), KNOWN: Look(style.GREY, dashed=True, marker="o")}
POINTS = {
    TABLE: (style.SKY, "D", 6), GREEDY: (style.GREEN, "^", 8), RANDOM: (style.AMBER, "o", 10), FIRST: (style.ORANGE, "s", 6),
    NEWEST: (style.PINK, "s", 6),
}  # fmt: skip
OTHERS: dict[str, Policy] = {
    GREEDY: Greedy(), FIRST: FirstCome(several=True), NEWEST: FirstCome(newest=True, several=True), RANDOM: Random(),
}  # fmt: skip
"""Rules without V. Like SABR they may give several GPUs to one job, so that times in the system can be compared."""


class GpuFigure(Figure):
    """Mean training speed over the time that jobs spend in the system, at three loads."""

    name = "gpu"
    title = "Training jobs on three kinds of GPU"
    where = "beyond the paper: Gavel's measurements"
    see = "Compare heights at the same time in the system: higher is faster."
    horizon = 1000, 100

    def runs(self) -> dict[str, PlannedRun]:
        runs: dict[str, PlannedRun] = {}
        for load in self._loads():
            setting = _setting(load)
            mine = {name: self._run(setting, policy) for name, policy in OTHERS.items()}
            mine[TABLE] = self._run(_setting(load, "one-hot"), Sabr(V=BUSY, scale=POSTERIOR))
            for step in self._steps():
                mine[f"{SABR} x{step}"] = self._run(setting, Sabr(V=step * BUSY, scale=POSTERIOR))
                mine[f"{KNOWN} x{step}"] = self._run(setting, KnownRewards(V=step * BUSY))
            runs |= {f"{load} {name}": run for name, run in mine.items()}
        return runs

    def table(self, records: Records) -> Table:
        rows = []
        for load in self._loads():
            names = {f"{name} x{step}": (name, step * BUSY) for name in CURVES for step in self._steps()}
            names |= {name: (name, BUSY if name == TABLE else math.nan) for name in POINTS}
            first = records[f"{load} {FIRST}"]
            for key, (name, V) in names.items():
                place = _place(records[f"{load} {key}"], first, load, self.slots)
                rows.append({"load": load, "policy": name, "V": V, **place})
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, panels = style.panels(1, len(self._loads()), height=3.7)
        for axes, load in zip(panels, self._loads(), strict=True):
            _draw_load(axes, table.where(load=load), f"Load {load:g}")
        ends = [end for axes in panels for end in axes.get_ylim()]
        for axes in panels:
            axes.set_ylim(min(ends), max(ends))
        panels[0].set_ylabel("speed, times that of first come")
        style.legend(figure, panels, columns=4)
        return figure

    def caption(self, table: Table) -> str:
        gains = {
            name: ", ".join(f"{_first(table, load, name) - 1.0:.0%}" for load in self._loads())
            for name in (SABR, GREEDY, NEWEST)
        }
        speeds = ", ".join(number(_first(table, load, FIRST, "speed")) for load in self._loads())
        loads = ", ".join(f"{load:g}" for load in self._loads())
        return (
            f"{_setting(LOADS[0]).example.job_classes} kinds of training jobs on 12 GPUs (K80, P100, V100), speeds as "
            "measured for Gavel; arrivals, lengths (20 rounds on average) and noise (0.1) are assumed. Under first come, "
            f"first served, jobs run at {speeds} of the speed of their fastest GPU at loads {loads}. At the leftmost point "
            "of a curve no GPU is idle while a job waits; every policy may give several GPUs to one job. SABR "
            f"gains {gains[SABR]}, greedy service with the same learner {gains[GREEDY]}, and taking the newest free GPU "
            f"without learning {gains[NEWEST]}. A larger V waits for better GPUs; work left at the end counts as lost. "
            f"Moving a job between rounds is free here. {min(self.options.count, self._most())} replications of "
            f"{self.slots:,} rounds from an empty system."
        )

    def claims(self, records: Records) -> list[Claim]:
        gains, features = [], []
        for load in self._loads():
            sabr, plain = records[f"{load} {SABR} x1"], records[f"{load} {TABLE}"]
            for base in (FIRST, NEWEST, RANDOM):
                mine, other, where = sabr.samples, records[f"{load} {base}"].samples, f"against {base}, load {load:g}"
                speed = effects.ratio(mine["reward"], other["reward"], "times its speed")
                stay = effects.ratio(mine["queue"], other["queue"], "times its time")
                gains.append(Finding(f"speed {where}", speed, above(1.0)))
                gains.append(Finding(f"time in the system {where}", stay, below(MARGIN)))
            for slot in (EARLY, self.slots):
                ratio = _speed_until(slot, sabr, plain)
                features.append(Finding(f"load {load:g}, first {slot:,} rounds", ratio, above(1.0)))
        return [
            Claim(
                "gpu-learning-gains", "Section 1",
                "Learning which job suits which server earns more while queues stay short.",
                test="SABR (Thompson sampling, a V at which no GPU is idle while a job waits) over first come, first "
                "served, and over random service, on the same jobs: reward collected, and time in the system, at most "
                f"{MARGIN - 1.0:.0%} longer.",
                findings=tuple(gains),
                note="All give a job as many GPUs as it can use. First come, first served takes any free GPU, or the newest "
                "free one, and finishes the oldest job first; SABR and random service draw the jobs, so that more of them "
                "are begun at the same time.",
            ),
            Claim(
                "gpu-features-help", "Section 1", "Features shared by related jobs make learning need fewer samples.",
                test="Reward collected by SABR with the features of jobs (model family, batch size) over that of SABR "
                "with one-hot features, which learns each pair of job and GPU separately.", findings=tuple(features),
                note="The features describe these speeds only roughly; later a table without features is more accurate.",
            ),
        ]  # fmt: skip

    def _run(self, setting: Setting, policy: Policy) -> PlannedRun:
        return self.options.run(setting, policy, self.slots, most=self._most())

    def _steps(self) -> tuple[int, ...]:
        return self.options.pick(STEPS, quick=STEPS[::2])

    def _loads(self) -> tuple[float, ...]:
        return self.options.pick(LOADS, quick=LOADS[1:2])

    def _most(self) -> int:
        return self.options.pick(MOST, quick=4)


def _setting(load: float, features: Literal["known", "one-hot"] = "known") -> Setting:
    return SizedJobs(Fixed(gpu_table(load=load, features=features)))


def _place(record: Record, first: Record, load: float, slots: int) -> dict[str, float]:
    """Return the rounds a job spends in the system, by Little's law, and the speed, also relative to `first`.

    Speed is the reward per round of work that arrives; replications are pairs, so ratios are more precise than speeds.
    """
    problem = _setting(load).example
    reward = record.samples["reward"]
    return {
        "rounds": float(record.samples["queue"].mean() / problem.arrival_rate.sum()),
        "speed": float(reward.mean() / (problem.traffic.sum() * slots)),
        **effects.ratio(reward, first.samples["reward"]).row(),
    }


def _speed_until(slot: int, one: Record, other: Record) -> Effect:
    place = int(np.searchsorted(one.slot, slot))
    first, second = (record.paths["reward"][:, place].astype(np.float64) for record in (one, other))
    return effects.ratio(first, second, "times without features")


def _first(table: Table, load: float, name: str, column: str = "mean") -> float:
    """Return a cell of a policy at a load, at the smallest V."""
    return float(table.where(load=load, policy=name).rows[0][column])


def _draw_load(axes: Axes, table: Table, title: str) -> None:
    for name, look in CURVES.items():
        style.curve(axes, table.where(policy=name), look, name, x="rounds")
    for name, (colour, marker, size) in POINTS.items():
        (row,) = table.where(policy=name).rows
        axes.plot([row["rounds"]] * 2, [row["low"], row["high"]], color=colour, lw=1.6, alpha=0.6)
        axes.plot(row["rounds"], row["mean"], ls="", marker=marker, color=colour, ms=size, label=name)
    axes.margins(x=0.06)
    style.label(axes, title, x="rounds that a job is in the system")
