"""Services that are not interrupted: the same jobs, once preempted after each slot as in the paper, once not."""

from bilinq import style
from bilinq.display import number
from bilinq.experiments import Record, Synthetic
from bilinq.experiments.run import Planned
from bilinq.lab import effects
from bilinq.lab.claims import Claim, above, below, between, judged
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.presets import POSTERIOR
from bilinq.lab.replays import PlannedReplay
from bilinq.policies import Sabr
from bilinq.routing import Router, SchedulerRouter
from bilinq.routing.routers import LeastBusy
from bilinq.style import Axes, Drawing, Look

LOADS = (0.5, 0.8)
LENGTHS = (4, 10)  # slots of service that a job needs on average
JOBS = 300
MOST = 10  # replications at most
STEPS = (2.0, 7.0, 28.0)  # V; the second is a tenth of sqrt(I T) with T = 500
LITTLE, MIDDLE, MUCH = STEPS
LONGEST = 112.0  # V without preemption only, where jobs stay shorter at the same V
BETWEEN = (3.7, 14.0, 56.0)  # as well, so that V is close where policies are compared at an equal time
ALIKE = 0.01  # rewards per slot of service that differ by less count as equal
PREEMPTED, WHOLE, FIRST = "SABR, preempted", "SABR, not preempted", "least busy, not preempted"
CURVES = {PREEMPTED: Look(style.BLUE, marker="o"), WHOLE: Look(style.ORANGE, marker="s")}


class ServiceFigure(Figure):
    """Reward lost per slot of service over the time in the system, for several V, two loads and two lengths of jobs."""

    name = "service"
    title = "Services that are not interrupted"
    where = "beyond the paper: Section 2.3"
    see = "Compare the heights of orange and blue at the same time in the system: lower is better."
    horizon = JOBS, 40

    def runs(self) -> dict[str, Planned]:
        runs: dict[str, Planned] = {}
        for load in LOADS:
            for length in LENGTHS:
                for name in CURVES:
                    for V in self._steps(name):
                        sabr = SchedulerRouter(slot=1.0, policy=Sabr(V=V, scale=POSTERIOR))
                        runs[_key(name, load, length, V)] = self._run(sabr, load, length, name == PREEMPTED)
                runs[_key(FIRST, load, length)] = self._run(LeastBusy(), load, length, preempted=False)
        return runs

    def table(self, records: Records) -> Table:
        rows = []
        for load in LOADS:
            for length in LENGTHS:
                names = {_key(name, load, length, V): (name, V) for name in CURVES for V in self._steps(name)}
                for key, (name, V) in (names | {_key(FIRST, load, length): (FIRST, 0.0)}).items():
                    samples = records[key].samples
                    stay = float(samples["sojourn"].mean()) / length
                    place = {"load": load, "length": length, "policy": name, "V": V, "time": stay}
                    rows.append(place | effects.mean(samples["lost"]).row())
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, panels = style.panels(2, 2, height=2.8)
        places = [(load, length) for load in LOADS for length in LENGTHS]
        for letter, axes, (load, length) in zip("abcd", panels, places, strict=True):
            _draw(axes, table.where(load=load, length=length))
            style.label(
                axes, f"({letter}) Load {load:g}, jobs of {length} slots", x="time in the system over mean length"
            )
        for axes in panels[::2]:
            axes.set_ylabel("reward lost per slot")
        style.legend(figure, panels[0])
        return figure

    def caption(self, table: Table) -> str:
        mine = table.where(load=LOADS[-1], length=LENGTHS[-1])

        def at(name: str, column: str = "mean") -> str:
            some = mine.where(policy=name) if name == FIRST else mine.where(policy=name, V=MIDDLE)
            return number(some.last(column))

        steps, paused = (", ".join(f"{V:g}" for V in self._steps(name)) for name in (WHOLE, PREEMPTED))
        return (
            f"{self.slots} jobs on four servers by `bilinq.replay`; lengths are geometric, rewards are counted per slot of "
            f"service. From left to right SABR has V = {paused} with preemption and {steps} without. At load {LOADS[-1]:g} "
            f"with jobs of {LENGTHS[-1]} slots and V = {MIDDLE:g} it loses {at(PREEMPTED)} where services are interrupted "
            f"after each slot and {at(WHOLE)} where not, and jobs stay {at(PREEMPTED, 'time')} and {at(WHOLE, 'time')} "
            f"times their mean length. The oldest job on the least busy servers loses {at(FIRST)} and stays "
            f"{at(FIRST, 'time')} times. Bands have the differences between instances; the claims compare pairs. "
            f"{min(self.options.count, MOST)} instances."
        )

    def claims(self, records: Records) -> list[Claim]:
        stay, equal, more, gain = {}, {}, {}, {}
        for load in LOADS:
            for length in LENGTHS:
                text = f"load {load:g}, {length} slots"
                curve = [records[_key(WHOLE, load, length, V)] for V in self._steps(WHOLE)]
                few, middle, many = (_at(records, WHOLE, load, length, V) for V in STEPS)
                paused, first = _at(records, PREEMPTED, load, length, MIDDLE), _at(records, FIRST, load, length)
                stay[text] = effects.ratio(middle.samples["sojourn"], paused.samples["sojourn"], "times")
                equal[text] = effects.gap_at_equal_queue(curve, paused, "lost")
                more[text] = effects.difference(many.samples["lost"], few.samples["lost"], "reward per slot")
                gain[text] = effects.difference(middle.samples["lost"], first.samples["lost"], "reward per slot")
        return [
            Claim(
                "whole-services-wait-less", "Section 2.3",
                "At the same V, jobs whose service is not interrupted stay shorter.",
                test=f"Mean time in the system over that with preemption after each slot, V = {MIDDLE:g}, the same jobs.",
                findings=judged(stay, below(1.0)), ours=True,
                note="A policy that cannot interrupt sees only the jobs that have not started, and fills idle servers for "
                "these alone.",
            ),
            Claim(
                "preemption-earns-more", "Section 2.3",
                "At an equal time in the system, SABR earns more if it may interrupt services.",
                test="Reward lost per slot of service without preemption less that with preemption after each slot, at the "
                f"V at which jobs stay as long as with V = {MIDDLE:g} there, the same jobs.",
                findings=judged(equal, above(0.0)), ours=True,
            ),
            Claim(
                "V-hardly-matters-without-preemption", "Section 2.3",
                "If services are not interrupted, a larger V hardly changes the reward.",
                test=f"Reward lost per slot of service at V = {MUCH:g} less that at V = {LITTLE:g}, the same jobs; hardly "
                f"means by less than {ALIKE:g}, our choice.", findings=judged(more, between(-ALIKE, ALIKE)), ours=True,
            ),
            Claim(
                "learning-gains-without-preemption", "Section 1",
                "If services are not interrupted, SABR earns more than a rule that learns nothing.",
                test="Reward lost per slot of service less that of starting the oldest job on the least busy servers, V = "
                f"{MIDDLE:g}, the same jobs.", findings=judged(gain, below(0.0)), ours=True,
            ),
        ]  # fmt: skip

    def _run(self, router: Router, load: float, length: int, preempted: bool) -> PlannedReplay:
        setting = Synthetic(traffic=4.0 * load, service_rate=1.0 / length, law="poisson")
        return PlannedReplay(
            setting, router, slots=round(self.slots * length / (4.0 * load)), preempted=preempted,
            replications=min(self.options.count, MOST), seed=self.options.seed,
        )  # fmt: skip

    def _steps(self, name: str) -> tuple[float, ...]:
        if name == WHOLE:
            return tuple(sorted((*STEPS, LONGEST, *self.options.pick(BETWEEN, quick=()))))
        return self.options.pick(STEPS, quick=(MIDDLE,))


def _key(name: str, load: float, length: int, V: float = 0.0) -> str:
    return f"{name} {load} {length} {V}"


def _at(records: Records, name: str, load: float, length: int, V: float = 0.0) -> Record:
    return records[_key(name, load, length, V)]


def _draw(axes: Axes, table: Table) -> None:
    for name, look in CURVES.items():
        style.curve(axes, table.where(policy=name), look, name, x="time")
    (row,) = table.where(policy=FIRST).rows
    axes.plot([row["time"]] * 2, [row["low"], row["high"]], color=style.GREY, lw=1.6, alpha=0.6)
    axes.plot(row["time"], row["mean"], "D", color=style.GREY, ms=6, label=FIRST)
    style.log_axis(axes, "x", table.numbers("time"))
