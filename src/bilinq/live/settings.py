"""Settings of the live service: options win over the environment (`BILINQ_...`), and that over a TOML file."""

import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import Meta, Struct, structs, to_builtins

from bilinq.errors import BadInput
from bilinq.live.wire.messages import JobClassInfo, Positive, ServerClassInfo
from bilinq.live.wire.queries import convert

PREFIX = "BILINQ_"
TARGET_WAIT = 2.0
"""Seconds to aim at where neither `target_wait` nor `V` is given."""

Whole = Annotated[int, Meta(ge=1)]
Text = Annotated[str, Meta(min_length=1)]
Address = Annotated[str, Meta(pattern=r"^https?://[^/?#]+/?$")]
Bounded = Annotated[float, Meta(ge=-1e9, le=1e9)]


class Range(Struct, forbid_unknown_fields=True, frozen=True):
    """Least and largest reward, in the user's units."""

    low: Bounded = 0.0
    high: Bounded = 1.0


class Settings(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What `bilinq serve` is told; times in seconds.

    Attributes
    ----------
    database : str
        `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://...`.
    host, port : str, int
        Where to listen; port 0 is any that is free.
    advertise : str, optional
        Address at which other processes on the same PostgreSQL reach this one; `http://host:port` unless given.
    policy : "sabr" or "first-come"
        Who decides: the scheduler that learns, or first come, first served, to compare with; that one has no knobs, so
        those below, from `target_wait` to `work_conserving`, and weights of classes do not matter to it.
    slot, lease, max_attempts
        Length of a slot, time for a lease, and failed or expired leases until a job is dead.
    target_wait, V : at most one
        Wait to aim at, two seconds unless given, or the weight of rewards against queues itself.
    reward, gamma, exploration, work_conserving
        Range of rewards, cost of using a server, how to explore, and whether no server idles while a job waits.
    backlog : int
        Most waiting jobs of a class that has no bound of its own.
    max_body, rate : int, float
        Most bytes of a request, and requests per second of each key, with bursts of a second's worth; rate 0 is no limit.
    retention : float, optional
        How long finished and cancelled jobs are kept; for ever unless given.
    server_retention : float
        How long servers are kept that neither ask for work nor hold any.
    seed, checkpoint_every, log_requests
        Seed of the scheduler, time between checkpoints of what was learnt, and whether each request gets a log line.
    sample, history : float
        Time between two moments for those who watch, and for how long moments are kept.
    log_format : "text" or "json"
        How log lines are written.
    metrics : "key" or "open"
        Whether `/metrics` needs a key with scope read or is open to everybody.
    baseline_url, baseline_key : str, optional
        Address of another service that gets the same jobs, to be shown beside this one, and a key for it with scope read.
    job_class, server_class
        Classes to start with; `[[job_class]]` and `[[server_class]]` in a file.
    """

    database: Text = "sqlite:///bilinq.db"
    host: Text = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8000
    advertise: Address | None = None
    policy: Literal["sabr", "first-come"] = "sabr"
    slot: Annotated[float, Meta(ge=0.001, le=60.0)] = 0.05
    lease: Annotated[float, Meta(ge=0.05, le=86_400.0)] = 30.0
    max_attempts: Whole = 5
    target_wait: Positive | None = None
    V: Positive | None = None
    reward: Range = Range()
    gamma: Annotated[float, Meta(gt=1.0, le=1e6)] = 1.2
    exploration: Literal["thompson", "ucb", "none"] = "thompson"
    work_conserving: bool = False
    backlog: Whole = 100_000
    max_body: Annotated[int, Meta(ge=1024, le=1 << 30)] = 1 << 20
    rate: Annotated[float, Meta(ge=0.0)] = 2000.0
    retention: Positive | None = None
    server_retention: Positive = 604_800.0
    seed: Annotated[int, Meta(ge=0)] | None = None
    checkpoint_every: Positive = 60.0
    log_requests: bool = False
    sample: Annotated[float, Meta(ge=0.05, le=60.0)] = 1.0
    history: Annotated[float, Meta(ge=1.0, le=86_400.0)] = 3600.0
    log_format: Literal["text", "json"] = "text"
    metrics: Literal["key", "open"] = "key"
    baseline_url: Address | None = None
    baseline_key: Text | None = None
    job_class: tuple[JobClassInfo, ...] = ()
    server_class: tuple[ServerClassInfo, ...] = ()

    def __post_init__(self) -> None:
        if self.V is not None and self.target_wait is not None:
            raise BadInput(
                f"target_wait and V exclude each other; got target_wait = {self.target_wait:g} and V = {self.V:g}"
            )
        if self.V is None and self.target_wait is None:
            structs.force_setattr(self, "target_wait", TARGET_WAIT)
        if not self.reward.low < self.reward.high:
            raise BadInput(
                f"reward.low must be below reward.high; got low = {self.reward.low:g}, high = {self.reward.high:g}"
            )
        _check_classes("job_class", self.job_class)
        _check_classes("server_class", self.server_class)


_KINDS: dict[str, Any] = {field.name: field.type for field in structs.fields(Settings)}
_FLAT: dict[str, Any] = {
    name: kind for name, kind in _KINDS.items() if not name.endswith("_class") and name != "reward"
}
_FLAT |= {"reward_low": Bounded, "reward_high": Bounded}
RENAMED = {"rival_url": "baseline_url", "rival_key": "baseline_key"}
"""Old names of settings, which are accepted until the next version."""


def load(
    file: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """Return settings out of a TOML file, the environment and options, of which later ones win.

    Parameters
    ----------
    file : path, optional
        TOML; `BILINQ_CONFIG` of the environment unless given.
    options : mapping, optional
        Values by name; those that are None were not given. The range of rewards is `reward_low` and `reward_high`.
    environment : mapping
        A setting is `BILINQ_` and its name in capitals; classes are left to the file and the API.

    Examples
    --------
    >>> load(options={"port": 8080}, environment={"BILINQ_PORT": "9000", "BILINQ_SLOT": "0.1"}).port
    8080
    """
    file = file or environment.get(f"{PREFIX}CONFIG") or None
    named = {f"{PREFIX}{name.upper()}": RENAMED.get(name, name) for name in (*RENAMED, *_FLAT)}
    layers = [
        {} if file is None else _read(Path(file)),
        _flat((named[key], key, environment[key]) for key in named if key in environment),
        _flat((name, _option(name), value) for name, value in (options or {}).items() if value is not None),
    ]
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _merge(merged, layer)
    reward = merged.pop("reward", {})
    return Settings(**merged, reward=Range(**reward))


def _read(file: Path) -> dict[str, Any]:
    """Return the file's values by name, each checked against its field."""
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{file}: cannot be read; {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file}: is not valid TOML; {error}") from None
    raw = {RENAMED.get(key, key): value for key, value in raw.items()}
    for key in raw:
        if key not in _KINDS:
            raise BadInput(f"{file}: unknown key {key!r}; known are {', '.join(_KINDS)}")
    values = {key: _value(_KINDS[key], value, f"{file}: {key}") for key, value in raw.items()}
    if "reward" in values:
        values["reward"] = {key: float(value) for key, value in raw["reward"].items()}
    return values


def _flat(given: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """Return values by name out of (name, name to tell the user, value), the range of rewards put together."""
    values: dict[str, Any] = {}
    for name, told, raw in given:
        value = _value(_FLAT[name], raw, told, strict=False)
        if name.startswith("reward_"):
            values.setdefault("reward", {})[name.removeprefix("reward_")] = value
        else:
            values[name] = value
    return values


def _value(kind: Any, raw: Any, told: str, *, strict: bool = True) -> Any:
    """Return `raw` as a `kind`, or an error that begins with the name to tell."""
    if get_origin(kind) is Literal and raw not in get_args(kind):
        raise BadInput(f"{told}: must be one of {', '.join(get_args(kind))}; got {_shown(raw)}")
    try:
        value = convert(raw, kind, strict=strict)
    except BadInput as error:
        text = str(error)
        glue = "" if text.startswith("[") else "." if getattr(error, "field", "") else ": "
        raise BadInput(f"{told}{glue}{text}; got {_shown(raw)}") from None
    if not _finite(to_builtins(value)):
        raise BadInput(f"{told}: must be finite; got {_shown(raw)}")
    return value


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return both; of `target_wait` and `V` the one that wins takes the place of the other."""
    if over.keys() & {"target_wait", "V"}:
        under = {key: value for key, value in under.items() if key not in ("target_wait", "V")}
    reward = under.get("reward", {}) | over.get("reward", {})
    return under | over | ({"reward": reward} if reward else {})


def _check_classes(name: str, classes: Iterable[JobClassInfo | ServerClassInfo]) -> None:
    """Raise unless names differ and features have one length."""
    known: dict[str, int] = {}
    for item in classes:
        if item.name in known:
            raise BadInput(f"{name}: names must differ; got {item.name!r} twice")
        known[item.name] = len(item.features)
    if len(set(known.values())) > 1:
        sizes = ", ".join(f"{size} in {key!r}" for key, size in known.items())
        raise BadInput(f"{name}: features must have one length; got {sizes}")


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(value: Any, length: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= length else text[: length - 3] + "..."
