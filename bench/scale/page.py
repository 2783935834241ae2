"""Comparison of the tables of `docs/scale.md` with those of the benchmark, cell by cell."""

import re
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.report import Report

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
SAME, ONE, BRIEF, LITTLE = 0.05, 1.0, 0.2, 1e-3
"""By which part a number may differ from the page's, or by how many rounds, seconds or per cent: rounding moves them."""
NUMBER = re.compile(r"[\d.]+(e[-+]\d+)?")
OWN = (", s", "takes")
"""How the names of columns end that depend on the machine."""
NAMES = {"size", "delay", "change", "who", "iterations", "what"}
"""Columns that identify a row."""
Table = tuple[list[str], list[list[str]]]


def read() -> list[Table]:
    """Return the tables of the page: columns and rows."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    blocks = [list(block) for inside, block in groupby(lines, lambda line: line.startswith("|")) if inside]
    cells = [[[cell.strip() for cell in line.strip("|").split("|")] for line in block] for block in blocks]
    return [(table[0], table[2:]) for table in cells]


def compared(report: Report, page: list[Table]) -> Report:
    """Return the report with a bound: no cell of the page may differ."""
    wrong = differences(report, page)
    report.at_most("cells that differ in docs/scale.md" + "".join(f"; {cell}" for cell in wrong), len(wrong), 0.0)
    return report


def differences(report: Report, page: list[Table]) -> list[str]:
    """Return the cells that differ on the page, and the rows it lacks; times are left out."""
    shown = next((rows for columns, rows in page if columns == list(report.columns)), [])
    wrong = []
    for row in report.rows:
        keys = [str(cell) for column, cell in zip(report.columns, row, strict=True) if column in NAMES]
        known = [cells for cells in shown if cells[: len(keys)] == keys]
        if len(known) != 1:
            wrong.append(f"no row {', '.join(keys)}")
            continue
        parts = zip(report.columns, row, known[0], strict=True)
        wrong += [f"{', '.join(keys)}: {column}" for column, here, there in parts if not _alike(column, here, there)]
    return wrong


def _alike(column: str, here: Any, there: str) -> bool:
    """Return whether a cell of the page is the one that was found."""
    if column.endswith(OWN):
        return True
    if isinstance(here, str) or not NUMBER.fullmatch(there):
        return str(here) == there
    least = ONE if isinstance(here, int) else BRIEF if "second" in column else LITTLE
    return bool(abs(float(there) - here) <= max(SAME * abs(here), least))
