"""The files of a trace: which of them belong to which table, their formats, and their rows as Arrow batches."""

from __future__ import annotations

import glob
import itertools
import zlib
from collections.abc import Collection, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bilinq.errors import BadInput
from bilinq.extras import optional_imports
from bilinq.traces.tables import BYTE_ORDER_MARK, GZIP, JOINED, PARQUET, TABLES, columns

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["csv", "json", "parquet"]

HEAD = 1 << 16  # bytes at the start of a file that show its format
EXTRACT = dict(zip(("machine", "collection", "instance", "cpi"), TABLES, strict=True))
"""Names of the files of a small extract, without what follows the dot."""


def batches(path: str | PathLike[str], table: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table in batches of bounded size, with the same columns whatever the files look like.

    Files are CSV, JSON lines or Parquet, the first two with gzip or without: their content decides, not their names.
    Whole numbers are int64 and never pass through floats; other numbers are float64; columns that a file lacks are null.

    Parameters
    ----------
    path : path
        A file, a folder or a pattern with `*`; shards are read in order of their names.
    table : str
        "machine_events", "collection_events", "instance_events" or "instance_usage".

    Raises
    ------
    BadInput
        If a file cannot be read to its end; the message names the file and, where there is one, the row.

    Examples
    --------
    >>> _ = Path("machine.csv").write_text("time,machine_id,cpus,memory\\n0,92126449465,1.0,0.5\\n")
    >>> next(batches("machine.csv", "machine_events")).to_pylist()
    [{'time': 0, 'machine_id': 92126449465, 'type': None, 'cpus': 1.0, 'memory': 0.5}]
    """
    for file in shards(path):
        yield from read(file, table)


def read(file: Path, table: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file of a table in batches."""
    wanted = columns(table)
    with optional_imports():
        from bilinq.traces import formats, json_lines
    readers = {"csv": formats.read_csv, "json": json_lines.read, "parquet": formats.read_parquet}
    yield from readers[format_of(file)](file, wanted)


def shards(path: str | PathLike[str]) -> list[Path]:
    """Return the files that `path` matches, in order of their names."""
    name = str(path)
    if Path(name).is_dir():
        found = files_below(Path(name))
    elif "*" in name and not Path(name).exists():
        found = sorted(Path(file) for file in glob.glob(name) if Path(file).is_file())  # noqa: PTH207 (absolute ones)
    else:
        return [Path(name)]
    if not found:
        raise BadInput(f"{name}: must match at least one file; got none")
    check_distinct(found)
    return found


def files_below(folder: Path) -> list[Path]:
    """Return all files below a folder in order of their names, except hidden ones."""
    return sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))


def check_distinct(files: Collection[Path]) -> None:
    """Raise if two files differ only after the first dot: one shard in two formats would count twice."""
    seen: dict[Path, Path] = {}
    for file in sorted(files):
        stem = file.parent / file.name.split(".")[0]
        if stem in seen:
            raise BadInput(f"{file}: must not be the same shard as another file; got {seen[stem].name} next to it")
        seen[stem] = file


def format_of(file: Path) -> Format:
    """Return the format of a file by its first bytes."""
    try:
        with file.open("rb") as stream:
            head = stream.read(HEAD)
        packed = head.startswith(GZIP)
        if packed:
            head = zlib.decompressobj(wbits=31).decompress(head, HEAD)
    except OSError as error:
        raise BadInput(f"{file}: cannot be read; {error.strerror}") from None
    except zlib.error as error:
        raise BadInput(f"{file}: is damaged gzip before its first row; {error}") from None
    if not head.strip():
        raise BadInput(f"{file}: must contain rows; it is empty")
    if head.startswith(PARQUET):
        if packed:
            raise BadInput(f"{file}: is Parquet inside gzip, which cannot be read in parts; unpack it first")
        return "parquet"
    if b"\0" in head:
        raise BadInput(f"{file}: row 1: must be UTF-8 text or Parquet; got {head[:12]!r}")
    return "json" if head.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"{") else "csv"


# A folder with a trace.


def find_tables(path: str | PathLike[str]) -> tuple[dict[str, list[Path]], int]:
    """Return the files of the four tables in a folder, and how many files belong to none.

    The names of files, or of the folders they are in, show to which table they belong:
    `machine_events-000000000000.json.gz` and `instance_usage/part-7.parquet` are the trace as Google publishes it;
    `machine.csv`, `collection.csv`, `instance.csv` and `cpi.csv` a small extract. A CSV file with another name is used for
    all tables but the machines if its header shows that their rows are joined in it.
    """
    root = Path(path)
    if not root.exists():
        raise BadInput(f"{root}: cannot be read; No such file or directory")
    files: dict[str, list[Path]] = {table: [] for table in TABLES}
    others = 0
    for file in files_below(root) if root.is_dir() else [root]:
        tables = tables_of(file, root)
        for table in tables:
            files[table].append(file)
        others += not tables
    listed = ", ".join(f"{len(found)} of {table}" for table, found in files.items())
    for table, found in files.items():
        if not found:
            raise BadInput(f"{root}: must contain a file of {table}; got {listed}")
        check_distinct(found)
    return files, others


def tables_of(file: Path, root: Path) -> tuple[str, ...]:
    """Return the tables whose rows a file below `root` contains."""
    names = [file.name, *(parent.name for parent in file.relative_to(root).parents)] if file != root else [file.name]
    for name, table in itertools.product(names, TABLES):
        if name.startswith(table):
            return (table,)
    stem = file.name.split(".")[0]
    if stem in EXTRACT:
        return (EXTRACT[stem],)
    return tuple(table for table in TABLES if table != "machine_events") if _joined(file) else ()


def _joined(file: Path) -> bool:
    if ".csv" not in file.name or format_of(file) != "csv":
        return False
    with optional_imports():
        from bilinq.traces.formats import header

    return set(JOINED) <= set(header(file))
