"""Shards: the files of one table, whatever their format, as a stream of Arrow batches with one schema."""

from __future__ import annotations

import glob
import zlib
from collections.abc import Collection, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bilinq.errors import BadInput, BilinqError
from bilinq.traces import tables

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["csv", "json", "parquet"]

HEAD = 1 << 16
"""Bytes at the start of a file that tell its format."""
GZIP, PARQUET, BYTE_ORDER_MARK = b"\x1f\x8b", b"PAR1", b"\xef\xbb\xbf"


def batches(path: str | PathLike[str], table: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table in batches of bounded size, with the same columns whatever the files look like.

    Files are CSV, JSON lines or Parquet, the first two with gzip or without: their content tells, not their names.
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
    wanted = tables.columns(table)
    try:
        from bilinq.traces import delimited, lines, parquet
    except ImportError as error:  # pragma: no cover
        raise BilinqError(f"reading a trace needs PyArrow: pip install 'bilinq[lab]' ({error})") from None
    readers = {"csv": delimited.read, "json": lines.read, "parquet": parquet.read}
    yield from readers[format_of(file)](file, wanted)


def shards(path: str | PathLike[str]) -> list[Path]:
    """Return the files that `path` stands for, in order of their names."""
    name = str(path)
    if Path(name).is_dir():
        found = below(Path(name))
    elif "*" in name and not Path(name).exists():
        found = sorted(Path(file) for file in glob.glob(name) if Path(file).is_file())  # noqa: PTH207 (absolute ones)
    else:
        return [Path(name)]
    if not found:
        raise BadInput(f"{name}: must stand for at least one file; got none")
    check_distinct(found)
    return found


def below(folder: Path) -> list[Path]:
    """Return all files below a folder in order of their names, hidden ones not."""
    return sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))


def check_distinct(files: Collection[Path]) -> None:
    """Refuse two files that differ only in what follows the first dot: one shard in two formats counts twice."""
    seen: dict[Path, Path] = {}
    for file in sorted(files):
        stem = file.parent / file.name.split(".")[0]
        if stem in seen:
            raise BadInput(f"{file}: must not be the same shard as another file; got {seen[stem].name} beside it")
        seen[stem] = file


def format_of(file: Path) -> Format:
    """Return the format of a file by its first bytes."""
    head = _head(file)
    packed = head.startswith(GZIP)
    if packed:
        head = _unpacked(head, file)
    if not head.strip():
        raise BadInput(f"{file}: must hold rows; it is empty")
    if head.startswith(PARQUET):
        if packed:
            raise BadInput(f"{file}: is Parquet inside gzip, which cannot be read in parts; unpack it first")
        return "parquet"
    if b"\0" in head:
        raise BadInput(f"{file}: row 1: must be UTF-8 text or Parquet; got {head[:12]!r}")
    return "json" if head.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"{") else "csv"


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(HEAD)
    except OSError as error:
        raise BadInput(f"{file}: cannot be read; {error.strerror}") from None


def _unpacked(head: bytes, file: Path) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD)
    except zlib.error as error:
        raise BadInput(f"{file}: is damaged gzip before its first row; {error}") from None
