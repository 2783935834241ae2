"""SABR compared with UGDA-OL per job, as released and per class pair: where sharing a bilinear parameter pays."""

from collections.abc import Callable
from dataclasses import dataclass

from bilinq import style
from bilinq.display import number
from bilinq.experiments import PlannedRun, Record, Setting, SizedJobs, Synthetic, Unstructured
from bilinq.lab import effects
from bilinq.lab.claims import Claim, below, judged
from bilinq.lab.effects import price, price_gap
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.presets import known, published, sabr, ugda
from bilinq.policies import Policy
from bilinq.style import Axes, Drawing

BLIND, JOB, RELEASED, PAIR = "no learning", "UGDA-OL, per job", "UGDA-OL, as released", "UGDA-OL, per class pair"
CODE, THOMPSON, ONE_HOT = "SABR, public code radius", "SABR, Thompson sampling", "Thompson sampling, no features"
KNOWN = "rewards known"

POLICIES: dict[str, tuple[Callable[[float], Policy], str, str]] = {
    # with so much assumed noise every index stays 1
    BLIND: (lambda V: sabr(V, radius="calibrated", noise=1e6), style.GREY, "X"),
    JOB: (lambda V: ugda(V, "job"), style.AMBER, "s"),
    RELEASED: (lambda V: ugda(V, "published"), style.PINK, "D"),
    PAIR: (lambda V: ugda(V, "class"), style.ORANGE, "o"),
    CODE: (lambda V: sabr(V, radius="published"), style.BLUE, "o"),
    THOMPSON: (sabr, style.SKY, "^"),
    ONE_HOT: (sabr, style.GREEN, "v"),
}
"""A policy for each V, with its colour and marker."""
COMPARISONS = ((CODE, RELEASED), (CODE, PAIR), (THOMPSON, PAIR), (THOMPSON, ONE_HOT))
"""Pairs of a policy that shares one parameter and a policy that does not."""
ONE_UNIT = (JOB, PAIR, CODE, THOMPSON, ONE_HOT)
"""Policies for one-unit jobs; these leave with their first reward, so UGDA-OL per job and as released do not learn."""


@dataclass(frozen=True)
class Case:
    """A setting, its slots, the most replications, and the policies; `steps` are multiples of V for known rewards."""

    setting: Setting
    slots: int
    most: int
    steps: tuple[float, ...]
    policies: tuple[str, ...] = tuple(POLICIES)

    @property
    def V(self) -> float:
        """The public code's V."""
        return published(self.setting.example, self.slots)


MANY = Synthetic(job_classes=50, server_classes=10, servers=20)
CASES = {
    "10 x 2 classes, one-unit jobs": Case(Synthetic(), 500, 100, (0.4, 0.6, 0.8, 1.1), ONE_UNIT),
    "50 x 10 classes, one-unit jobs": Case(MANY, 2000, 20, (0.5, 0.75, 1.1), ONE_UNIT[:-1]),
    "10 x 2 classes, jobs of 20 units": Case(SizedJobs(Synthetic(service_rate=0.05)), 2000, 50, (0.4, 0.6, 0.8, 1.1)),
}
"""Where policies are compared. Thompson sampling without features is too slow with 500 pairs of classes."""


class BaselineFigure(Figure):
    """Regret over queue of three kinds of UGDA-OL and of SABR, with the frontier of known rewards."""

    name = "baseline"
    title = "What the baseline may learn"
    where = "Section 5.2, Section 3.2"
    see = "The height of a point above the dashed line is what its learner costs."

    def runs(self) -> dict[str, PlannedRun]:
        runs: dict[str, PlannedRun] = {}
        for text, case in CASES.items():
            mine = {name: POLICIES[name][0](case.V) for name in case.policies}
            mine |= {f"{KNOWN} x{step}": known(step * case.V) for step in case.steps}
            for name, policy in mine.items():
                setting = Unstructured(case.setting) if name == ONE_HOT else case.setting
                slots = self.options.pick(case.slots, quick=case.slots // 16)
                runs[f"{text}: {name}"] = self.options.run(setting, policy, slots, most=case.most)
        return runs

    def table(self, records: Records) -> Table:
        rows = []
        for text, case in CASES.items():
            known = _known(records, text)
            for name in case.policies:
                record = records[f"{text}: {name}"]
                cost = price([record], known)
                paid = {"price": cost.value, "price_low": cost.low, "price_high": cost.high}
                rows.append({"case": text, "policy": name, **_place(record), **paid})
            rows += [{"case": text, "policy": KNOWN, **_place(record)} for record in known]
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, panels = style.panels(1, len(CASES), height=4.0)
        for axes, text in zip(panels, CASES, strict=True):
            _draw_case(axes, table.where(case=text), text)
        panels[0].set_ylabel("regret")
        style.legend(figure, panels, columns=4)
        return figure

    def caption(self, table: Table) -> str:
        parts = []
        for text in CASES:
            paid = (number(table.where(case=text, policy=p).last("price")) for p in (PAIR, CODE, THOMPSON))
            parts.append("{}, {} and {} ({})".format(*paid, text))
        return (
            "All policies of a panel run at one V; the dashed line shows known rewards at other V. The height of a point "
            "above it is its price of learning, Eq. (32), drawn with its interval: for UGDA-OL per class pair, SABR "
            f"with the public code's radius and SABR with Thompson sampling {'; '.join(parts)}. With one-unit jobs UGDA-OL "
            "per job learns nothing: a job leaves with its first reward. Thompson sampling without features learns every "
            "pair separately: it separates the gain of sharing from the gain of knowing the noise."
        )

    def claims(self, records: Records) -> list[Claim]:
        gaps = {}
        for text, case in CASES.items():
            for one, other in COMPARISONS:
                if other in case.policies:
                    a, b = ([records[f"{text}: {name}"]] for name in (one, other))
                    gaps[f"{one}, against {other}; {text}"] = price_gap(a, b, _known(records, text))
        return [
            Claim(
                "sharing-beats-unstructured", "Section 1, Section 3.2",
                "Sharing one bilinear parameter over all pairs learns from fewer samples than treating "
                "pairs as unrelated.",
                test="Price of learning of the policy that shares, less that of the one that does not, each at its "
                "own queue, all at the public code's V. Without features, Thompson sampling has a parameter for each "
                "pair.", findings=judged(gaps, below(0.0)),
                note="UGDA-OL's bonus is made for noise of scale one, ten times the experiment's: SABR's gain over it "
                "is due to the smaller bonus as well. Only the comparison without features isolates sharing.",
            )
        ]  # fmt: skip


def _known(records: Records, text: str) -> list[Record]:
    return [records[f"{text}: {KNOWN} x{step}"] for step in CASES[text].steps]


def _place(record: Record) -> dict[str, float]:
    queue = float(record.samples["queue"].mean())
    return {"queue": queue, **effects.mean(record.samples["regret"], "regret").row()}


def _draw_case(axes: Axes, table: Table, title: str) -> None:
    frontier = table.where(policy=KNOWN)
    at, mean = frontier.numbers("queue"), frontier.numbers("mean")
    axes.plot(at, mean, color=style.GREY, lw=1.2, ls=style.DASHED, label=KNOWN)
    for name, (_, colour, marker) in POLICIES.items():
        for row in table.where(policy=name).rows:
            ends = [row["mean"] - row["price"] + row[end] for end in ("price_low", "price_high")]
            axes.plot([row["queue"]] * 2, ends, color=colour, lw=1.6, alpha=0.6)
            axes.plot(row["queue"], row["mean"], ls="", marker=marker, color=colour, ms=7, label=name)
    style.label(axes, title.replace(", ", ",\n"), x="time-average queue")
