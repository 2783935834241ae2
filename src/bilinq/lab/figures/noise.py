"""Rewards that the theory does not have: zero or one, heavy-tailed, and with means that are not bilinear."""

import numpy as np
from scipy.special import expit

from bilinq import style
from bilinq.arrays import Array
from bilinq.display import number
from bilinq.experiments import Logistic, OtherRewards, PlannedRun, Setting, Synthetic, Unstructured
from bilinq.lab import effects
from bilinq.lab.claims import Claim, Finding, above, below, between, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.figures.radius import WATCHED, covered, watched
from bilinq.lab.presets import POSTERIOR, order
from bilinq.policies import KnownRewards, Policy, Sabr
from bilinq.problem import Problem
from bilinq.simulation import BinaryRewards, HeavyTailedRewards
from bilinq.style import Axes, Drawing, Look

SHARE = 0.1  # V as a share of sqrt(I T)
FREEDOM, LIMIT = 1.5, 1.5  # of the heavy-tailed noise, which has no variance, and where rewards are clipped
SLOPES = (10.0, 30.0)  # of the logistic means: nearly straight over the rewards of an instance, and nearly a step
SAME = 5.0  # regrets that differ by less count as the same
BASE = Synthetic()
BINARY, SPREAD = "zero or one", 0.43  # the deviation of rewards that are zero or one, on average over pairs
NORMAL, WIDE, HEAVY, CLIPPED = "normal, 0.1", f"normal, {SPREAD:g}", "heavy-tailed", "heavy-tailed, clipped"
SETTINGS: dict[str, Setting] = {
    NORMAL: BASE,
    WIDE: Synthetic(noise=SPREAD),
    BINARY: OtherRewards(BASE, BinaryRewards()),
    HEAVY: OtherRewards(BASE, HeavyTailedRewards(FREEDOM)),
    CLIPPED: OtherRewards(BASE, HeavyTailedRewards(FREEDOM, LIMIT)),
}
LOGISTIC = {f"logistic, {slope:g}": slope for slope in SLOPES}
SETTINGS |= {name: OtherRewards(Logistic(BASE, slope), BinaryRewards()) for name, slope in LOGISTIC.items()}
"""Laws of rewards. Means are bilinear but where they are logistic; there, rewards are zero or one."""
FEATURES, PLAIN, KNOWN = "SABR", "SABR, no features", "rewards known"
LOOKS = {FEATURES: (style.BLUE, "o"), PLAIN: (style.SKY, "D"), KNOWN: (style.GREY, "s")}
SETS = {NORMAL: style.INK, BINARY: style.GREEN, HEAVY: style.ORANGE, CLIPPED: style.AMBER}
"""Laws for which the confidence set is watched: those with a true parameter."""


class NoiseFigure(Figure):
    """Regret under seven laws of rewards, distance of the estimate from the truth, and what a bilinear fit loses."""

    name = "noise"
    title = "Rewards that are not normal, or not bilinear"
    where = "beyond the paper: Section 2.3"
    see = "Compare the lines of each law with the first one; in (b) look which curves pass one."

    def runs(self) -> dict[str, PlannedRun]:
        return {
            f"{law}, {name}": self.options.run(Unstructured(setting) if name == PLAIN else setting, policy, self.slots)
            for law, setting in SETTINGS.items()
            for name, policy in self._policies().items()
        }

    def table(self, records: Records) -> Table:
        rows: list[dict[str, object]] = []
        for law in SETTINGS:
            for name in LOOKS:
                found = effects.mean(records[f"{law}, {name}"].samples["regret"])
                rows.append({"law": law, "policy": name, "measure": "regret", **found.row()})
        for law in SETS:
            distance = self._distance(law)
            for t in range(0, self.slots, 5):
                rows.append({"law": law, "measure": "distance", "slot": t + 1, **effects.mean(distance[t]).row()})
        for slope in self._slopes():
            rows.append({"measure": "lost", "slope": slope, **self._lost(slope).row()})
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, (regret, distance, lost) = style.panels(1, 3, height=3.7)
        _draw_regret(regret, table.where(measure="regret"))
        for law, colour in SETS.items():
            style.curve(distance, table.where(law=law, measure="distance"), Look(colour), law)
        distance.axhline(1.0, color=style.GREY, lw=1.2, ls=style.DASHED)
        distance.set_ylim(bottom=0.0)
        style.label(distance, "(b) Error over its radius")
        style.curve(lost, table.where(measure="lost"), Look(style.PINK, marker="o"), x="slope")
        lost.set_ylim(bottom=0.0)
        style.label(lost, "(c) Loss of a bilinear fit", x="slope of the logistic", y="% of the best reward")
        style.legend(figure, [regret, distance], columns=4)
        return figure

    def caption(self, table: Table) -> str:
        regret = {law: number(table.where(law=law, policy=FEATURES).rows[0]["mean"]) for law in SETTINGS}
        without = {law: number(table.where(law=law, policy=PLAIN).last()) for law in SETTINGS}
        steep = list(LOGISTIC)[-1]
        return (
            f"(a) Regret after {self.slots} slots at a tenth of sqrt(I T), no job served twice: SABR has {regret[NORMAL]} "
            f"with normal noise of 0.1, {regret[WIDE]} with {SPREAD:g}, which is the deviation of rewards that are zero or "
            f"one, {regret[BINARY]} with these, {regret[HEAVY]} with noise of Student's t with {FREEDOM:g} degrees of "
            f"freedom, and {regret[CLIPPED]} if such rewards are clipped at {LIMIT:g} of either sign. Where the mean is a "
            f"logistic function with slope {LOGISTIC[steep]:g} it has {regret[steep]}, without features {without[steep]}. "
            "(b) Distance of the estimate from the truth, in parts of the calibrated radius. (c) A bilinear fit to logistic "
            "means, from data without end, ranks some servers wrongly. "
            f"{self.options.count} instances."
        )

    def claims(self, records: Records) -> list[Claim]:
        test = f"after {self.slots} slots on the same instances and arrivals"

        def less(one: str, other: str) -> Effect:
            a, b = (records[name].samples["regret"] for name in (one, other))
            return effects.difference(a, b, "regret")

        def laws(one: str, other: str) -> dict[str, Effect]:
            return {name: less(f"{one}, {name}", f"{other}, {name}") for name in (FEATURES, PLAIN)}

        features = {law: less(f"{law}, {FEATURES}", f"{law}, {PLAIN}") for law in (BINARY, *LOGISTIC)}
        inside = {law: covered(self._distance(law)) for law in (BINARY, HEAVY, CLIPPED)}
        level = 1.0 - Sabr().confidence
        return [
            Claim(
                "bounded-rewards-learnt", "Section 2.3",
                "Rewards need only be sub-Gaussian: those of zero or one are learnt like normal ones.",
                test=f"Regret with rewards of zero or one less that with normal ones of about the same variance, {test}; "
                f"the same within {SAME:g}, our choice.",
                findings=judged(laws(BINARY, WIDE), between(-SAME, SAME)),
            ),
            Claim(
                "heavy-tails-raise-regret", "Section 2.3", "Noise without a variance raises regret.",
                test=f"Regret with Student's t of {FREEDOM:g} degrees of freedom less that with normal noise of the same "
                f"scale, {test}.", findings=judged(laws(HEAVY, NORMAL), above(0.0)), ours=True,
            ),
            Claim(
                "clipped-rewards-lower-regret", "Section 2.3", "If heavy-tailed rewards are clipped, regret is lower.",
                test=f"Regret with rewards clipped at {LIMIT:g} of either sign less that without clipping, {test}.",
                findings=judged(laws(CLIPPED, HEAVY), below(0.0)), ours=True,
                note="Means are in [0, 1]; the user must know such a range.",
            ),
            Claim(
                "confidence-set-needs-thin-tails", "Appendix, lemma on the confidence set",
                "The calibrated confidence set contains the parameter whatever the law of the noise.",
                test=f"Share of {WATCHED * self.options.count:,} instances in which the set contains the truth in all "
                f"slots; it is made for {level:.0%}.",
                findings=judged(inside, above(level)), ours=True,
                note="The lemma assumes sub-Gaussian noise, so that it does not speak of heavy tails.",
            ),
            Claim(
                "features-help-if-not-bilinear", "Section 2.3",
                "Features shorten learning although means are not bilinear in them.",
                test=f"Regret of SABR less that of SABR without features, {test}; rewards are zero or one.",
                findings=judged(features, below(0.0)), ours=True,
            ),
            Claim(
                "bilinear-fit-is-enough", "Section 2.3", "In the long run a bilinear fit to logistic means loses nothing.",
                test="Mean reward of the best server of each class less that of the server with the best fitted reward, in "
                f"% of the former, {self.options.count} instances; the fit is by least squares over all pairs. Less than "
                "1 %, our choice.",
                findings=tuple(Finding(name, self._lost(slope), below(1.0)) for name, slope in LOGISTIC.items()), ours=True,
            ),
        ]  # fmt: skip

    def _policies(self) -> dict[str, Policy]:
        V = SHARE * order(BASE.example, self.slots)
        sabr = Sabr(V=V, scale=POSTERIOR)
        return {FEATURES: sabr, PLAIN: sabr, KNOWN: KnownRewards(V=V)}

    def _distance(self, law: str) -> list[Array]:
        policy = Sabr(V=SHARE * order(BASE.example, self.slots), radius="calibrated")
        return watched(SETTINGS[law], policy, self.slots, WATCHED * self.options.count, self.options.seed).distance

    def _slopes(self) -> tuple[float, ...]:
        return self.options.pick((1.0, 5.0, *SLOPES, 60.0), quick=SLOPES)

    def _lost(self, slope: float) -> Effect:
        problems = BASE.problems(self.options.seed, range(self.options.count))
        return effects.mean(np.array([lost(problem, slope) for problem in problems]), "% of the best reward")


def lost(problem: Problem, slope: float, centre: float = Logistic.centre) -> float:
    """Return what the best bilinear fit to logistic means loses by its choice of servers, in % of the best reward."""
    mean = expit(slope * (problem.mean_reward - centre))
    z = np.einsum("ia,jb->ijab", problem.job_features, problem.server_features).reshape(mean.size, -1)
    fitted = (z @ np.linalg.lstsq(z, mean.ravel(), rcond=None)[0]).reshape(mean.shape)
    chosen = np.take_along_axis(mean, fitted.argmax(axis=1)[:, None], axis=1)
    return float(100.0 * (1.0 - chosen.sum() / mean.max(axis=1).sum()))


def _draw_regret(axes: Axes, table: Table) -> None:
    for shift, (name, (colour, marker)) in zip((-0.2, 0.0, 0.2), LOOKS.items(), strict=True):
        for place, law in enumerate(reversed(SETTINGS)):
            (row,) = table.where(policy=name, law=law).rows
            axes.plot([row["low"], row["high"]], [place - shift] * 2, color=colour, lw=2.0, alpha=0.6)
            axes.plot(row["mean"], place - shift, marker, color=colour, ms=5, label=name, ls="")
    axes.set_yticks(range(len(SETTINGS)), list(reversed(SETTINGS)))
    axes.grid(visible=True, axis="x")
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    style.label(axes, "(a) Regret by law of rewards", x="regret")
