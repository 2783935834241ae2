"""Requests to language models as they were recorded in production: when they came and how long they were."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from bilinq.arrays import Array, IntArray, short
from bilinq.traces.lines import Line, csv_lines, json_lines

AZURE = ("Azure Public Dataset, https://github.com/Azure/AzurePublicDataset", "CC-BY 4.0")
MOONCAKE = ("Mooncake, https://github.com/kvcache-ai/Mooncake", "Apache-2.0")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordedRequests:
    """Requests in order of arrival.

    Attributes
    ----------
    arrival : (N,) array
        Seconds from the first request; never falls.
    prompt, output : (N,) int arrays
        Tokens.
    source, licence : str
    shared : (N,) array, optional
        Fraction of the blocks of a prompt that an earlier request had, so that a server may have them in its cache.
    """

    arrival: Array
    prompt: IntArray
    output: IntArray
    source: str
    licence: str
    shared: Array | None = None

    def __len__(self) -> int:
        return len(self.arrival)

    def __repr__(self) -> str:
        return f"RecordedRequests({len(self)} in {self.arrival[-1]:.0f} s; {self.source})"


def load_azure_llm(file: str | PathLike[str]) -> RecordedRequests:
    """Return the requests of a file of Azure's traces of language models."""
    lines = list(csv_lines(Path(file), ("TIMESTAMP", "ContextTokens", "GeneratedTokens")))
    nanoseconds = np.array([_time(line, "TIMESTAMP") for line in lines]).astype(np.int64)
    arrival = (nanoseconds - nanoseconds[0]) / 1e9
    _check_order(lines, arrival, "TIMESTAMP")
    return RecordedRequests(
        arrival=arrival, prompt=_tokens(lines, "ContextTokens"), output=_tokens(lines, "GeneratedTokens"),
        source=AZURE[0], licence=AZURE[1],
    )  # fmt: skip


def load_mooncake(file: str | PathLike[str]) -> RecordedRequests:
    """Return the requests of a file of Mooncake's traces, with the shared part of each prompt.

    The file has a number for each block of 512 tokens; equal numbers are equal blocks after equal beginnings.
    """
    lines = list(json_lines(Path(file)))
    milliseconds = np.array([line.number_of("timestamp") for line in lines])
    arrival = (milliseconds - milliseconds[0]) / 1e3
    _check_order(lines, arrival, "timestamp")
    return RecordedRequests(
        arrival=arrival, prompt=_tokens(lines, "input_length"), output=_tokens(lines, "output_length"),
        shared=_shared(lines), source=MOONCAKE[0], licence=MOONCAKE[1],
    )  # fmt: skip


def _time(line: Line, key: str) -> np.datetime64:
    value = line.text(key)
    try:
        if not np.isnat(time := np.datetime64(value, "ns")):
            return time
    except ValueError:
        pass
    raise line.fault(f"{key} must be a date and time; got {short(value)}")


def _tokens(lines: list[Line], key: str) -> IntArray:
    return np.array([line.whole_number(key) for line in lines], np.int64)


def _check_order(lines: list[Line], arrival: Array, key: str) -> None:
    falls = np.flatnonzero(np.diff(arrival) < 0)
    if falls.size:
        line = lines[falls[0] + 1]
        raise line.fault(f"{key} must not be before that of the record above; got {short(line.values[key])}")


def _shared(lines: list[Line]) -> Array:
    seen: set[int] = set()
    fractions = []
    for line in lines:
        blocks = _blocks(line)
        fractions.append(len(blocks & seen) / len(blocks))
        seen |= blocks
    return np.array(fractions)


def _blocks(line: Line) -> set[int]:
    blocks = line.values.get("hash_ids")
    whole = isinstance(blocks, list) and all(type(block) is int for block in blocks)
    if not isinstance(blocks, list) or not whole or not blocks:
        raise line.fault(f"hash_ids must be a list of whole numbers; got {short(blocks)}")
    return set(blocks)
