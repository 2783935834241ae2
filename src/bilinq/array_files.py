"""Arrays in one `.npz` file: written whole or not at all, read without pickle, checked before use."""

import os
import zipfile
import zlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bilinq.errors import BadInput

VERSION = 1
MARK = "bilinq"  # the entry with kind and version of the file


def save_arrays(path: str | PathLike[str], kind: str, arrays: Mapping[str, NDArray[Any] | None]) -> None:
    """Write arrays to `path`, which ends in `.npz`; those that are None are left out.

    The file appears under its name when it is complete.
    """
    file = _named(path)
    kept = {name: array for name, array in arrays.items() if array is not None}
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        try:
            with part.open("wb") as stream:
                np.savez_compressed(stream, allow_pickle=False, **{MARK: np.array(f"{kind} {VERSION}")}, **kept)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"{file}: cannot be written; {error.strerror}") from None


def load_arrays(path: str | PathLike[str], kind: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file that `save_arrays` wrote; raise `BadInput` if it is damaged or of another kind."""
    file = _named(path)
    try:
        with file.open("rb") as stream:
            if not zipfile.is_zipfile(stream):
                raise zipfile.BadZipFile("it is no zip file")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError, NotImplementedError, zlib.error) as error:
        raise BadInput(f"{file}: is damaged or not a file of arrays; {error}") from None
    except OSError as error:
        raise BadInput(f"{file}: cannot be read; {error.strerror or error}") from None
    mark = str(arrays.pop(MARK, np.array("something else")))
    if mark != f"{kind} {VERSION}":
        raise BadInput(f"{file}: must contain a {kind}, version {VERSION}; got {mark!r}")
    return arrays


def _named(path: str | PathLike[str]) -> Path:
    file = Path(path)
    if file.suffix.lower() != ".npz":
        raise BadInput(f"{file}: the name must end in .npz; got {file.suffix!r}")
    return file
