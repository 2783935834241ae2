"""A folder with a trace: which of its files hold which table."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from bilinq.errors import BadInput
from bilinq.traces.shards import below, check_distinct, format_of
from bilinq.traces.tables import JOINED, TABLES

EXTRACT = {
    "machine": "machine_events",
    "collection": "collection_events",
    "instance": "instance_events",
    "cpi": "instance_usage",
}
"""Names of the files of a small extract, without what follows the dot."""


@dataclass(frozen=True)
class Folder:
    """The files of each table, and how many files belong to none."""

    files: dict[str, list[Path]]
    others: int

    @property
    def count(self) -> int:
        """Number of shards to read; a joined file is read once for each of its tables."""
        return sum(map(len, self.files.values()))


def find(path: str | PathLike[str]) -> Folder:
    """Return the files of the four tables in a folder, by the names of files or of the folders they are in.

    `machine_events-000000000000.json.gz` and `instance_usage/part-7.parquet` are the trace as Google gives it;
    `machine.csv`, `collection.csv`, `instance.csv` and `cpi.csv` a small extract. A CSV file with another name is taken
    for all tables but the machines if its header shows that their rows are joined in it.
    """
    root = Path(path)
    if not root.exists():
        raise BadInput(f"{root}: cannot be read; No such file or directory")
    files: dict[str, list[Path]] = {table: [] for table in TABLES}
    others = 0
    for file in below(root) if root.is_dir() else [root]:
        tables = tables_of(file, root)
        for table in tables:
            files[table].append(file)
        others += not tables
    for table, found in files.items():
        if not found:
            raise BadInput(f"{root}: must hold a file of {table}; got {_listed(files)}")
        check_distinct(found)
    return Folder(files, others)


def tables_of(file: Path, root: Path) -> tuple[str, ...]:
    """Return the tables whose rows a file below `root` holds."""
    names = [file.name, *(parent.name for parent in file.relative_to(root).parents)] if file != root else [file.name]
    for name in names:
        for table in TABLES:
            if name.startswith(table):
                return (table,)
    stem = file.name.split(".")[0]
    if stem in EXTRACT:
        return (EXTRACT[stem],)
    return tuple(table for table in TABLES if table != "machine_events") if _joined(file) else ()


def _joined(file: Path) -> bool:
    if ".csv" not in file.name or format_of(file) != "csv":
        return False
    from bilinq.traces.delimited import header

    return set(JOINED) <= set(header(file))


def _listed(files: dict[str, list[Path]]) -> str:
    return ", ".join(f"{len(found)} of {table}" for table, found in files.items())
