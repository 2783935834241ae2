"""The script of `docs/contest.md`, on small contests."""

from bench import contest as page

from bilinq import contest
from bilinq.routing.routers import BestScore, KnownClasses, LeastBusy, QueuePrice
from workloads import random_fleet


def test_tables_and_figure_have_every_contest() -> None:
    known = KnownClasses()
    routers = {"bilinq": QueuePrice(known), "least busy": LeastBusy(), "no price, known": BestScore(known)}
    small = contest(random_fleet(200), routers, 1.0, seeds=2, tuning_seeds=1)
    found = {(name, load): small for name in page.TABLES for load in page.WAITS}
    text = page.markdown(found)
    rows = [line for line in text.splitlines() if line.startswith("| least busy")]
    gap = 100.0 * small.differences["reward"]["least busy"].difference.mean
    assert len(rows) == 2 and rows[0].count(f"{gap:+.1f}") == 3 and rows[0].count(" * |") == 3
    assert "no price" not in text
    rows = [line for line in page.without_price(found).splitlines() if "known" in line]
    growth = f"{small['no price, known'].mean('growth').mean:.2f}"
    assert len(rows) == 2 and rows[1].count(f"| {growth} |") == 3 and "least busy" not in page.without_price(found)
    assert len(page.other_measures(found).splitlines()) == 5
    assert [axes.get_title(loc="left") for axes in page.draw(found).axes][-1] == "MMLU, load 0.95"
