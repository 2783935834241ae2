"""How much to explore: regret over the scale of Thompson samples, and with noise that differs between servers."""

from typing import Literal

import numpy as np

from bilinq import style
from bilinq.display import number
from bilinq.experiments import PlannedRun, Setting, Synthetic, UnequalNoise
from bilinq.lab import effects
from bilinq.lab.claims import Claim, above, below, judged
from bilinq.lab.effects import Effect
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.presets import order
from bilinq.policies import Sabr
from bilinq.style import Drawing, Look, log_axis

SCALES = (0.05, 0.25, 0.5, 1.0, 4.0)
LITTLE, HALF, FULL = SCALES[0], 0.5, 1.0
PRIORS = (1e-4, 1e-2, 1.0, 100.0)  # ridges: the posterior begins with the variance of the noise over the ridge
SURE = PRIORS[-2:]
SHARE = 0.1  # V as a share of sqrt(I T)
MOST = 50  # replications at most
EQUAL, UNEQUAL = "noise 0.1 everywhere", "noise 0.02 and 0.5"
SETTINGS: dict[str, Setting] = {
    EQUAL: Synthetic(),
    UNEQUAL: UnequalNoise(Synthetic(), (0.02, 0.5)),
}
NOISES: dict[str, float | Literal["known", "estimate"]] = {
    "largest noise assumed": "known",
    "noise estimated": "estimate",
    "noise 0.1 assumed": 0.1,
}
"""What SABR assumes about the noise; it has one number for all pairs."""
LOOKS = {EQUAL: Look(style.BLUE, marker="o"), UNEQUAL: Look(style.ORANGE, marker="s")}


class ExplorationFigure(Figure):
    """Regret over the scale of exploration and over the prior, and for three ways to treat noise, equal and unequal."""

    name = "exploration"
    title = "How much to explore"
    where = "beyond the paper: Section 3.1"
    see = "Look where the lines are lowest, and how fast they rise to both sides."
    horizon = 500, 62

    def runs(self) -> dict[str, PlannedRun]:
        V = SHARE * order(Synthetic().example, self.slots)
        runs = {}
        for text, setting in SETTINGS.items():
            policies = {f"scale {scale}": Sabr(V=V, scale=scale) for scale in self._scales()}
            policies |= {name: Sabr(V=V, noise=noise) for name, noise in NOISES.items()}
            policies |= {f"ridge {ridge}": Sabr(V=V, regularization=ridge) for ridge in self._priors()}
            for name, policy in policies.items():
                runs[f"{text}, {name}"] = self.options.run(setting, policy, self.slots, most=MOST)
        return runs

    def table(self, records: Records) -> Table:
        rows = []
        for text in SETTINGS:
            for scale in self._scales():
                found = effects.mean(records[f"{text}, scale {scale}"].samples["regret"])
                rows.append({"setting": text, "scale": scale, **found.row()})
            for ridge in self._priors():
                found = effects.mean(records[f"{text}, ridge {ridge}"].samples["regret"])
                rows.append({"setting": text, "ridge": ridge, **found.row()})
            for name in NOISES:
                found = effects.mean(records[f"{text}, {name}"].samples["regret"])
                rows.append({"setting": text, "noise": name, **found.row()})
        return Table(rows)

    def draw(self, table: Table) -> Drawing:
        figure, (scales, priors, noises) = style.panels(1, 3, height=3.5)
        for text, look in LOOKS.items():
            rows = table.where(setting=text).rows
            for axes, column, label in ((scales, "scale", text), (priors, "ridge", "")):
                style.curve(axes, Table([row for row in rows if column in row]), look, label, x=column)
        log_axis(scales, "x", np.array(self._scales()))
        style.label(scales, "(a) Regret over the scale", x="scale of Thompson samples")
        priors.set_xscale("log")
        priors.set_xticks(self._priors(), [f"{ridge:g}" for ridge in self._priors()])
        priors.minorticks_off()
        style.label(priors, "(b) Regret over the prior", x="ridge")
        for place, name in enumerate(NOISES):
            for shift, (text, look) in zip((-0.1, 0.1), LOOKS.items(), strict=True):
                (row,) = table.where(setting=text, noise=name).rows
                noises.plot([place + shift] * 2, [row["low"], row["high"]], color=look.colour, lw=1.6, alpha=0.6)
                noises.plot(place + shift, row["mean"], look.marker, color=look.colour, ms=6)
        noises.set_xticks(range(len(NOISES)), [name.replace("noise ", "").replace(" ", "\n") for name in NOISES])
        noises.set_xlim(-0.5, len(NOISES) - 0.5)
        style.label(noises, "(c) Regret by assumed noise", x="")
        style.legend(figure, scales)
        return figure

    def caption(self, table: Table) -> str:
        equal, unequal = (
            {row["scale"]: number(row["mean"]) for row in table.where(setting=text).rows if "scale" in row}
            for text in SETTINGS
        )
        return (
            f"T = {self.slots}, V a tenth of sqrt(I T), no job served twice. With noise 0.1 regret is {equal[LITTLE]} at "
            f"scale {LITTLE:g}, {equal[HALF]} at {HALF:g} and {equal[FULL]} at {FULL:g}, which is the posterior itself; "
            f"with noise 0.02 and 0.5 on the two server classes {unequal[LITTLE]}, {unequal[HALF]} and {unequal[FULL]}. "
            "SABR uses one noise scale for all pairs: by default the largest. (b) A large ridge is a prior that is sure of "
            "rewards of zero, a small one a prior that knows nothing."
        )

    def claims(self, records: Records) -> list[Claim]:
        half, little, noise, priors = {}, {}, {}, {}
        for text in SETTINGS:
            half[text] = _less(records, text, f"scale {HALF}", f"scale {FULL}")
            little[text] = _less(records, text, f"scale {LITTLE}", f"scale {HALF}")
            for ridge in SURE:
                priors[f"ridge {ridge:g}, {text}"] = _less(records, text, f"ridge {ridge}", f"ridge {PRIORS[0]}")
            noise[f"noise estimated, {text}"] = _less(records, text, "noise estimated", "largest noise assumed")
        other = "noise 0.1 assumed"  # with noise 0.1 everywhere it is the same run
        noise[f"{other}, {UNEQUAL}"] = _less(records, UNEQUAL, other, "largest noise assumed")
        test = f"after {self.slots} slots on the same instances and arrivals"
        return [
            Claim(
                "half-the-posterior-explores-enough", "Section 3.1",
                "Samples that vary half as much as the posterior lose less than the posterior itself.",
                test=f"Regret at scale {HALF:g} less that at {FULL:g}, {test}.", findings=judged(half, below(0.0)),
                ours=True,
            ),
            Claim(
                "too-little-exploration-loses", "Section 3.1", "Samples that hardly vary lose more.",
                test=f"Regret at scale {LITTLE:g} less that at {HALF:g}, {test}.", findings=judged(little, above(0.0)),
                ours=True,
            ),
            Claim(
                "sure-priors-lose", "Algorithm 1",
                "A prior that is sure of small rewards loses against one that knows nothing.",
                test=f"Regret with a ridge of {SURE[0]:g} and of {SURE[1]:g} less that with {PRIORS[0]:g}, {test}.",
                findings=judged(priors, above(0.0)), ours=True,
                note="The default ridge is the variance of the noise. The paper's is n = 4, with a radius that makes up for "
                "it.",
            ),
            Claim(
                "largest-noise-costs", "Section 2.3", "To assume the largest noise for all pairs loses.",
                test=f"Regret with another assumed noise less that with the largest, {test}.",
                findings=judged(noise, below(0.0)), ours=True,
                note="Where noise is equal, the largest is the truth.",
            ),
        ]  # fmt: skip

    def _scales(self) -> tuple[float, ...]:
        return self.options.pick(SCALES, quick=(LITTLE, HALF, FULL))

    def _priors(self) -> tuple[float, ...]:
        return self.options.pick(PRIORS, quick=(PRIORS[0], *SURE))


def _less(records: Records, text: str, one: str, other: str) -> Effect:
    a, b = (records[f"{text}, {name}"].samples["regret"] for name in (one, other))
    return effects.difference(a, b, "regret")
