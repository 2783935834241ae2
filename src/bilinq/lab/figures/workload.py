"""The trace's workload: arrivals of collections and their sizes, a figure of the paper's appendix."""

import numpy as np
from matplotlib.ticker import StrMethodFormatter

from bilinq import style
from bilinq.display import number
from bilinq.lab import effects
from bilinq.lab.claims import Claim, Finding, above, between, judged
from bilinq.lab.figure import Figure, Records, Table
from bilinq.lab.trace import Trace
from bilinq.style import Drawing
from bilinq.traces import Digest

STATED_UNTIL, STATED_COLLECTIONS, STATED_MACHINES, STATED_SLOTS = 5000, 71, 9526, 1100
"""The window in seconds, and what it contains according to the paper."""
FEW, LARGEST = 3, 0.1
"""Units up to which a collection is small, and the share of collections that are called the largest."""


class WorkloadFigure(Figure):
    """Collections over time, and the distribution of their sizes."""

    name = "workload"
    title = "The trace: arrivals and sizes"
    where = "Appendix, characteristics of the input workload"
    see = "Look at the dashed line: the window that the paper states ends before the one that was run."

    def table(self, records: Records) -> Table:
        digest, units = Trace().digest, _units(Trace().digest)
        arrivals = [
            {"measure": "arrived", "second": point.second, "job_class": point.job_class + 1, "mean": k + 1}
            for k, point in enumerate(digest.collections)
        ]
        sizes = [{"measure": "at least", "units": int(x), "mean": float((units >= x).mean())} for x in np.unique(units)]
        return Table([*arrivals, *sizes])

    def draw(self, table: Table) -> Drawing:
        figure, (left, right) = style.panels()
        arrived, sizes = table.where(measure="arrived"), table.where(measure="at least")
        left.step(arrived.numbers("second"), arrived.numbers("mean"), where="post", color=style.BLUE, lw=2.0)
        left.axvline(STATED_UNTIL, color=style.GREY, lw=1.2, ls=style.DASHED)
        left.text(STATED_UNTIL - 60, 4, f"{number(STATED_UNTIL)} s", ha="right", color=style.GREY)
        left.set_ylim(bottom=0.0)
        left.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        style.label(left, "Collections queued so far", x="second of the trace")
        right.step(sizes.numbers("units"), sizes.numbers("mean"), where="pre", color=style.BLUE, lw=1.2)
        right.plot(sizes.numbers("units"), sizes.numbers("mean"), "o", color=style.BLUE, ms=4.5)
        right.set_xscale("log")
        right.set_yscale("log")
        right.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
        right.set_yticks([0.01, 0.1, 1.0], ["1 %", "10 %", "100 %"])
        right.minorticks_off()
        style.label(right, "Share of collections at least so large", x="units")
        return figure

    def caption(self, table: Table) -> str:
        digest, units = Trace().digest, _units(Trace().digest)
        early = int((table.where(measure="arrived").numbers("second") <= STATED_UNTIL).sum())
        return (
            f"The paper's text gives a window of {STATED_UNTIL:,} s, in which {early} collections were queued; its "
            f"{STATED_SLOTS:,} slots of 5 s are {digest.until:,.0f} s, with {len(units)}. Half of the collections have "
            f"{np.median(units):g} units or fewer; the largest has {units.max():,} of {units.sum():,}. A unit is an event "
            "row of an instance, as in the public code."
        )

    def claims(self, records: Records) -> list[Claim]:
        digest = Trace().digest
        arrived = sum(point.second <= STATED_UNTIL for point in digest.collections)
        machines = sum(kind.machines for kind in digest.machine_classes)
        units = np.sort(_units(digest))
        largest = float(units[-round(LARGEST * units.size) :].sum() / units.sum())
        shares = {
            f"collections of at most {FEW} units": effects.exact(float((units <= FEW).mean()), "share"),
            "units in the largest tenth": effects.exact(largest, "share"),
        }
        return [
            Claim(
                "trace-window", "Appendix, real-world data",
                "The first 5,000 s have 71 collections and 9,526 machines and make 1,100 slots of 5 s.",
                test="Exact counts in the trace.",
                findings=(
                    _counted(f"collections queued by {STATED_UNTIL:,} s", arrived, STATED_COLLECTIONS),
                    _counted("machines at the start", machines, STATED_MACHINES),
                    _counted(f"slots of 5 s in {STATED_UNTIL:,} s", STATED_UNTIL // 5, STATED_SLOTS),
                    _counted(f"collections in {STATED_SLOTS:,} slots", len(digest.collections), STATED_COLLECTIONS),
                ),
                note=f"The public code runs {STATED_SLOTS:,} slots, which take 5,500 s, and so does this report.",
            ),
            Claim(
                "trace-skewed", "Appendix, basic information about the workload",
                "Many collections have only a few instances, and a small share of them has most.",
                test=f"Share of collections with at most {FEW} units, and share of all units in the largest tenth of "
                "the collections; more than half each, our choice.", findings=judged(shares, above(0.5)),
            ),
        ]  # fmt: skip


def _units(digest: Digest) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([point.units for point in digest.collections], dtype=np.int64)


def _counted(condition: str, found: int, stated: int) -> Finding:
    return Finding(condition, effects.exact(found, "counted"), between(stated, stated))
