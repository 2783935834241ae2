"""What crosses between the regions of a fleet, in a round and in a second."""

from bench.report import Report
from bench.scale import messages
from bench.scale.central import solved
from bench.scale.messages import Traffic
from bench.scale.regions import EXCHANGE, REGIONS, ROUND, Size, name

LINKS = REGIONS * (REGIONS - 1)
"""From a region to another."""


def traffic(sizes: tuple[Size, ...]) -> Report:
    """Count it for a round, an exchange, or a decision."""
    columns = ("size", "pairs: messages", "MB a round", "regions: messages", "kB a round", "server nodes: kB a round",
               "exchange: kB", "one place: kB a decision", "every region: kB a decision")  # fmt: skip
    report = Report("messages between ten regions", columns)
    for size in sizes:
        pairs, jobs, servers = messages.pairs(*size), messages.regions(*size), messages.regions(*size, "server")
        one, every = messages.one_place(solved(size).allocation.expected), messages.every_place(size[0])
        others = (_kilobytes(way) for way in (jobs, servers, messages.exchange(size[1]), one, every))
        report.row(name(size), pairs.messages, pairs.wire / 1e6, jobs.messages, *others)
    return report


def bandwidth(size: Size) -> Report:
    """Count what that is in a second."""
    report = Report(f"in a second, {name(size)}", ("what", "messages", "MB", "kB on a link"))
    jobs, servers = messages.regions(*size), messages.regions(*size, "server")
    ways = {
        "pairs, rounds of 20 ms": (messages.pairs(*size), ROUND),
        "job nodes by region, rounds of 20 ms": (jobs, ROUND),
        "server nodes by region, rounds of 20 ms": (servers, ROUND),
        "exchanges, each 200 ms": (messages.exchange(size[1]), EXCHANGE),
        "every region solves, once a second": (messages.every_place(size[0]), 1.0),
    }
    for what, (way, each) in ways.items():
        wire = round(way.wire / each)
        report.row(what, round(way.messages / each), wire / 1e6, round(wire / 1e3 / LINKS))
    return report


def _kilobytes(way: Traffic) -> float | int:
    """Return kilobytes on the wire; without digits that say nothing."""
    return round(way.wire / 1e3) if way.wire >= 1e5 else way.wire / 1e3
