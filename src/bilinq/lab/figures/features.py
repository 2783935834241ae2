"""The trace's features: collections in five classes, machines in twelve, and how bilinear their rewards are."""

from dataclasses import replace

import numpy as np

from bilinq import style
from bilinq.display import number
from bilinq.lab import effects
from bilinq.lab.claims import Claim, above, judged
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.trace import Trace
from bilinq.style import Axes, Drawing
from bilinq.traces import Digest

MOST = 0.5  # share of the variance that a bilinear model must explain to count as an approximation
COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PINK, style.SKY, style.AMBER)
MARKERS = "osD^vP"
NEAR = 0.08  # distance in CPU capacity below which two labels would overlap


class FeaturesFigure(Figure):
    """Requests of collections by class, and capacities of machine classes with the number of machines."""

    name = "features"
    title = "The trace: classes and features"
    where = "Appendix, feature vectors for collections and machines"
    see = "Look how few collections and machines tell the classes apart."

    def table(self, records: Records) -> Table:
        digest = Trace().digest
        collections = [
            {"kind": "collection", "class": point.job_class + 1, "cpus": point.cpus, "memory": point.memory, "count": 1}
            for point in digest.collections
        ]
        machines = [
            {"kind": "machines", "class": k + 1, "cpus": kind.cpus, "memory": kind.memory, "count": kind.machines}
            for k, kind in enumerate(digest.machine_classes)
        ]
        return Table([*collections, *machines])

    def draw(self, table: Table) -> Drawing:
        figure, (left, right) = style.panels(height=3.9)
        _draw_collections(left, table.where(kind="collection"))
        _draw_machines(right, table.where(kind="machines"))
        style.legend(figure, left)
        return figure

    def caption(self, table: Table) -> str:
        digest = Trace().digest
        fit = digest.bilinear_fit()
        most = max(digest.pairs, key=lambda pair: pair.count)
        rows = sum(pair.count for pair in digest.pairs if pair.job_class == most.job_class)
        return (
            "Requests and capacities are shares of the largest machine. Left: a point is a collection, its mean request; "
            "classes by k-means. Right: a bubble is a class of equal machines, its area and label their number. Of the "
            f"{len(digest.job_classes) * len(digest.machine_classes)} pairs of classes the trace shows {fit.pairs}, and "
            f"class {most.job_class + 1} has {rows / sum(pair.count for pair in digest.pairs):.0%} of the rewards seen. On "
            f"these pairs a bilinear model explains {fit.explained:.0%} of the variance with {fit.rank} parameters, and "
            f"with zero for the unseen pairs {digest.bilinear_fit(unseen='zero').explained:.0%}."
        )

    def claims(self, records: Records) -> list[Claim]:
        digest = Trace().digest
        fit, filled = digest.bilinear_fit(), digest.bilinear_fit(unseen="zero")
        adjusted = 1.0 - (1.0 - fit.explained) * (fit.pairs - 1) / (fit.pairs - fit.rank)
        largest = max(range(len(digest.job_classes)), key=lambda i: sum(p.job_class == i for p in digest.pairs))
        found = {
            f"the {fit.pairs} pairs seen": fit.explained,
            f"the same, adjusted for {fit.rank} parameters": adjusted,
            "each pair seen, predicted from the others": _predicted(digest, None),
            f"each pair of class {largest + 1}, predicted from the others": _predicted(digest, largest),
            f"all {filled.pairs} pairs, zero where none was seen (the paper's problem)": filled.explained,
        }
        return [
            Claim(
                "trace-bilinear", "Appendix, connection to the cluster trace",
                "Inverse CPI depends on collection and machine in a way that bilinear feature interactions approximate.",
                test="Share of the variance of the pairs' mean 1/CPI that the bilinear model explains, least squares, "
                f"every pair with the same weight; at least {MOST:.0%}, our choice. Exact numbers, no interval.",
                findings=judged({text: effects.exact(r, "of the variance") for text, r in found.items()}, above(MOST)),
                note="The four classes that were seen have four features, so the model gives each class its own "
                "coefficients: only the class with more pairs than features tests the model, and nothing tests "
                "whether classes share a parameter.",
            )
        ]  # fmt: skip


def _predicted(digest: Digest, job_class: int | None) -> float:
    """Return the share of variance explained if each pair (of one class) is predicted by a fit without it."""
    chosen = [pair for pair in digest.pairs if job_class in (None, pair.job_class)]
    miss = []
    for pair in chosen:
        rest = replace(digest, pairs=tuple(other for other in digest.pairs if other is not pair))
        miss.append(pair.mean - rest.bilinear_fit().predicted[pair.job_class, pair.machine_class])
    means = np.array([pair.mean for pair in chosen])
    return float(1.0 - np.square(miss).sum() / np.square(means - means.mean()).sum())


def _draw_collections(axes: Axes, table: Table) -> None:
    for kind in sorted(int(k) for k in table.distinct("class")):
        mine, place = table.where(**{"class": kind}), (kind - 1) % len(COLOURS)
        text = f"class {kind} ({len(mine.rows)})"
        axes.plot(mine.numbers("cpus"), mine.numbers("memory"), ls="", marker=MARKERS[place], color=COLOURS[place],
                  ms=6, alpha=0.75, mew=0, label=text)  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [0.001, 0.003, 0.01, 0.03]
    axes.set_xticks(ticks, [number(tick) for tick in ticks])
    axes.set_yticks(ticks, [number(tick) for tick in ticks])
    axes.minorticks_off()
    style.label(axes, "(a) Collections", x="requested CPU", y="requested memory")


def _draw_machines(axes: Axes, table: Table) -> None:
    count = table.numbers("count")
    axes.scatter(table.numbers("cpus"), table.numbers("memory"), s=1200 * count / count.max() + 12, color=style.BLUE,
                 alpha=0.35, lw=0)  # fmt: skip
    for row in table.rows:
        level = table.where(memory=row["memory"]).numbers("cpus") - row["cpus"]
        crowded = ((level > 0.0) & (level < NEAR)).any()
        axes.annotate(f"{row['count']:,}", (row["cpus"], row["memory"]), xytext=(-8 if crowded else 0, 0), fontsize=8.5,
                      textcoords="offset points", ha="right" if crowded else "center", va="center")  # fmt: skip
    axes.margins(0.12)
    style.label(axes, "(b) Machines", x="CPU capacity", y="memory capacity")
