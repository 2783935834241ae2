"""The script of `docs/contest.md`, on small contests."""

from bench import contest as page

from bilinq import contest
from bilinq.routing.routers import KnownClasses, LeastBusy, QueuePrice
from workloads import random_fleet


def test_tables_and_figure_have_every_contest() -> None:
    routers = {"bilinq": QueuePrice(KnownClasses()), "least busy": LeastBusy()}
    small = contest(random_fleet(200), routers, 1.0, seeds=2, tuning_seeds=1)
    found = {(name, load): small for name in page.TABLES for load in page.WAITS}
    text = page.markdown(found)
    rows = [line for line in text.splitlines() if line.startswith("| least busy")]
    gap = 100.0 * small.differences["reward"]["least busy"].difference.mean
    assert len(rows) == 2 and rows[0].count(f"{gap:+.1f}") == 3 and rows[0].count(" * |") == 3
    assert [axes.get_title(loc="left") for axes in page.draw(found).axes][-1] == "MMLU, load 0.95"
