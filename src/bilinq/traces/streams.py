"""Files as streams of bytes or text, unpacked on the way, and what to say when they end early."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from bilinq.errors import BadInput
from bilinq.traces.shards import BYTE_ORDER_MARK, GZIP

BLOCK = 1 << 22
"""Bytes of text that are parsed at a time."""


def packed(file: Path) -> bool:
    """Tell whether a file is compressed with gzip."""
    with file.open("rb") as stream:
        return stream.read(2) == GZIP


def open_bytes(file: Path) -> Any:
    """Return an Arrow stream of the file's text as bytes."""
    stream = pa.OSFile(str(file), "rb")
    return pa.CompressedInputStream(stream, "gzip") if packed(file) else stream


def open_text(file: Path) -> TextIO:
    """Return the file's text for Python; bytes that are not UTF-8 become surrogates."""
    if packed(file):
        return gzip.open(file, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return file.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def is_utf8(text: str) -> bool:
    """Tell whether text from `open_text` was UTF-8."""
    return not any("\udc80" <= letter <= "\udcff" for letter in text)


def without_mark(block: bytes) -> bytes:
    """Return the first block of a file without its byte order mark."""
    return block.removeprefix(BYTE_ORDER_MARK)


def cut_off(file: Path, rows: int, error: BaseException) -> BadInput:
    """Return the error of a file that cannot be read past some row."""
    return BadInput(f"{file}: is cut off or damaged, somewhere after row {rows}; {error}")
