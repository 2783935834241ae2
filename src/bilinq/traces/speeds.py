"""Measured speeds of language models on accelerators, and how long a request takes by them."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from bilinq.arrays import Array, BoolArray, IntArray, count, one_of, positive, short
from bilinq.errors import BadInput
from bilinq.traces.lines import Line, csv_lines
from bilinq.traces.routing_tables import Names

INFERENCE_BENCH = ("Argonne LLM-Inference-Bench, https://github.com/argonne-lcf/LLM-Inference-Bench", "BSD-3-Clause")
SPLITWISE = ("Splitwise, https://github.com/Mutinifni/splitwise-sim, perf_model.csv", "MIT")

Outside = Literal["error", "nearest"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Speeds:
    """Measurements of language models on accelerators, a row for each.

    Attributes
    ----------
    model, accelerator, framework : (M,) arrays of str
    accelerators : (M,) int array
        How many of them serve a request together.
    prompt, output, batch : (M,) int arrays
        Tokens in and out of a request, and requests served at once.
    latency : (M,) array
        Seconds from the request to its last token, as reported.
    prefill : (M,) array
        Seconds to its first token, NaN where it was not measured.
    token_time : (M,) array
        Seconds for each output token, after prefill where that was measured, otherwise with it.
    throughput : (M,) array
        Tokens per second of the whole batch: as reported, or output tokens over latency.
    source, licence : str
    """

    model: Names
    accelerator: Names
    framework: Names
    accelerators: IntArray
    prompt: IntArray
    output: IntArray
    batch: IntArray
    latency: Array
    prefill: Array
    token_time: Array
    throughput: Array
    source: str
    licence: str

    def __len__(self) -> int:
        return len(self.latency)

    def __repr__(self) -> str:
        models, kinds = np.unique(self.model).size, np.unique(self.accelerator).size
        return f"Speeds({len(self)} measurements of {models} models on {kinds} accelerators; {self.source})"

    def duration(
        self,
        prompt: ArrayLike,
        output: ArrayLike,
        *,
        model: str,
        accelerator: str,
        accelerators: int | None = None,
        framework: str | None = None,
        batch: int = 1,
        outside: Outside = "error",
    ) -> Array:
        """Return the seconds that requests with `prompt` and `output` tokens take, in the shape of both together.

        Parameters
        ----------
        prompt, output : arrays
        model, accelerator : str
            As the file names them.
        accelerators, framework : optional
            Needed where the file has several for this model on this accelerator.
        batch : int
            Requests served at once, one that was measured at several lengths.
        outside : "error" or "nearest"
            What to do with lengths outside of the measured range: raise an error, or use the nearest measured length.

        Notes
        -----
        Where prefill was measured, the time is prefill at this prompt plus the token time at this output for every token
        after the first. Where it was not, prompts were as long as outputs: the time is the token time at this output for
        every token, and the prompt only has to lie in the measured range. Both are interpolated linearly between measured
        lengths; repeated measurements count with their mean.
        """
        one_of("outside", outside, ("error", "nearest"))
        rows = self._rows(model, accelerator, accelerators, framework) & (self.batch == count("batch", batch))
        inputs, outputs = np.broadcast_arrays(positive("prompt", prompt), positive("output", output))
        first = self._curve("prompt", rows, self.prefill, inputs, outside)
        each = self._curve("output", rows, self.token_time, outputs, outside)
        if np.isnan(self.prefill[rows]).any():
            return outputs * each
        return first + (outputs - 1.0) * each

    def _rows(self, model: str, accelerator: str, accelerators: int | None, framework: str | None) -> BoolArray:
        """Return which measurements are of this setting; raise if there is none or if the setting is not one."""
        rows: BoolArray = np.ones(len(self), np.bool_)
        wanted: dict[str, str | int | None] = {
            "model": model, "accelerator": accelerator, "framework": framework, "accelerators": accelerators,
        }  # fmt: skip
        for name, value in wanted.items():
            column = getattr(self, name)
            known = np.unique(column[rows]).tolist()
            if value is None and len(known) > 1:
                raise BadInput(f"{name} must be given, one of {', '.join(map(str, known))}; got None")
            if value is not None and value not in known:
                raise BadInput(f"{name} must be one of {', '.join(map(str, known))}; got {value!r}")
            rows &= column == known[0] if value is None else column == value
        return rows

    def _curve(self, name: str, rows: BoolArray, values: Array, tokens: Array, outside: Outside) -> Array:
        """Return `values` of the measurements `rows` at `tokens`, interpolated over the column `name`."""
        lengths, of = np.unique(getattr(self, name)[rows], return_inverse=True)
        if lengths.size < 2:
            raise BadInput(f"batch must be measured at two lengths of {name} or more; got {lengths.size}")
        if outside == "error":
            for wrong in tokens[(tokens < lengths[0]) | (tokens > lengths[-1])].tolist():
                raise BadInput(f"{name} must lie in the measured range, {lengths[0]} to {lengths[-1]}; got {wrong:g}")
        mean = np.bincount(of, values[rows]) / np.bincount(of)
        return np.asarray(np.interp(tokens, lengths, mean), np.float64)


def load_inference_bench(file: str | PathLike[str]) -> Speeds:
    """Return the measurements of LLM-Inference-Bench; its prompts are as long as its outputs, prefill is not measured."""
    names = ("Hardware", "Num of Hardware", "Framework", "Model", "Input Output Length", "Batch Size", "Latency",
             "Throughput")  # fmt: skip
    lines = list(csv_lines(Path(file), names))
    length, latency = _whole(lines, "Input Output Length"), _positive(lines, "Latency")
    return Speeds(
        model=_names(lines, "Model"), accelerator=_names(lines, "Hardware"), framework=_names(lines, "Framework"),
        accelerators=_whole(lines, "Num of Hardware"), prompt=length, output=length, batch=_whole(lines, "Batch Size"),
        latency=latency, prefill=np.full(len(lines), np.nan), token_time=latency / length,
        throughput=_positive(lines, "Throughput"), source=INFERENCE_BENCH[0], licence=INFERENCE_BENCH[1],
    )  # fmt: skip


def load_splitwise(file: str | PathLike[str]) -> Speeds:
    """Return the measurements of Splitwise in seconds; the file does not name a framework.

    Its runs often ended before `token_size` tokens (the reported latency is then far below prefill plus token times), so
    durations come from the times of prefill and of a token, which are steady, and not from the latency. They are within 7 %
    of the latency of runs that were complete.
    """
    names = ("model", "hardware", "prompt_size", "batch_size", "token_size", "prompt_time", "token_time", "e2e_time",
             "tensor_parallel")  # fmt: skip
    lines = list(csv_lines(Path(file), names))
    latency, batch = _positive(lines, "e2e_time") / 1000.0, _whole(lines, "batch_size")
    output = _whole(lines, "token_size")
    return Speeds(
        model=_names(lines, "model"), accelerator=_names(lines, "hardware"), framework=np.full(len(lines), "not named"),
        accelerators=_whole(lines, "tensor_parallel"), prompt=_whole(lines, "prompt_size"), output=output, batch=batch,
        latency=latency, prefill=_positive(lines, "prompt_time") / 1000.0,
        token_time=_positive(lines, "token_time") / 1000.0, throughput=batch * output / latency,
        source=SPLITWISE[0], licence=SPLITWISE[1],
    )  # fmt: skip


def _names(lines: Sequence[Line], key: str) -> Names:
    return np.array([line.text(key) for line in lines])


def _positive(lines: Sequence[Line], key: str) -> Array:
    return np.array([_above_zero(line, key) for line in lines])


def _above_zero(line: Line, key: str) -> float:
    value = line.number_of(key)
    if value <= 0.0:
        raise line.fault(f"{key} must be positive; got {short(line.values[key])}")
    return value


def _whole(lines: Sequence[Line], key: str) -> IntArray:
    return np.array([line.whole_number(key, least=1) for line in lines], np.int64)
