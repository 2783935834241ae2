"""Settings of the live service: options take precedence over the environment (`BILINQ_...`), and that over a file."""

import math
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

from msgspec import Meta, Struct, structs, to_builtins

from bilinq.errors import BadInput, did_you_mean
from bilinq.live.wire.access import NamespaceInfo
from bilinq.live.wire.messages import LARGEST, JobClassInfo, Positive, ServerClassInfo
from bilinq.live.wire.queries import convert
from bilinq.secret_files import SUFFIX, read_secret

if TYPE_CHECKING:
    from bilinq.policies import Policy

PREFIX = "BILINQ_"
TARGET_WAIT = 2.0  # seconds of waiting to aim at where neither `target_wait` nor `V` is given
DEFAULT_POLICY = LOOK_AHEAD = "look-ahead"
NO_SHADOW = "none"
STRUCTURED = ("reward", "job_class", "server_class", "namespace")
"""Settings of several values, which are tables in a file."""

Address = Annotated[str, Meta(pattern=r"^https?://[^/?#]+/?$")]
Bounded = Annotated[float, Meta(ge=-1e9, le=1e9)]


def _about(description: str, **rules: Any) -> Meta:
    """Return the rules of a setting, with the text that `bilinq serve --help` shows for it."""
    return Meta(description=description, **rules)


class RewardBounds(Struct, forbid_unknown_fields=True, frozen=True):
    """Least and largest reward, in the user's units."""

    low: Annotated[Bounded, _about("Least reward.")] = 0.0
    high: Annotated[Bounded, _about("Largest reward.")] = 1.0


class ServiceSettings(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Settings of the service; times are in seconds. `SETTINGS` has them for programs."""

    database: Annotated[
        str, _about("sqlite:///relative.db, sqlite:////absolute.db or postgresql://...", min_length=1)
    ] = "sqlite:///bilinq.db"
    host: Annotated[str, _about("Address to listen on.", min_length=1)] = "127.0.0.1"
    port: Annotated[int, _about("Port to listen on; 0 is any free one.", ge=0, le=65_535)] = 8000
    advertise: Annotated[
        Address | None,
        _about("Address at which other processes on the same PostgreSQL reach this one; http://host:port by default."),
    ] = None
    database_timeout: Annotated[
        float, _about("Seconds without an answer of the database after which requests get 503.", ge=0.1, le=3600.0)
    ] = 10.0
    policy: Annotated[
        str,
        _about("Policy that assigns jobs to servers; sabr is that of the paper."),
    ] = DEFAULT_POLICY
    shadow: Annotated[
        str,
        _about("Second policy that is compared with the first, without effect on any job; none by default."),
    ] = NO_SHADOW
    slot: Annotated[float, _about("Seconds of a slot.", ge=0.001, le=60.0)] = 0.05
    lease: Annotated[float, _about("Seconds until a lease expires.", ge=0.05, le=86_400.0)] = 30.0
    max_attempts: Annotated[
        int, _about("Failed or expired leases until a job is dead that has no limit of its own.", ge=1, le=LARGEST)
    ] = 5
    retry_first: Annotated[
        float,
        _about(
            "Longest pause before the first retry of a job; before each further one twice as long.", ge=0.0, le=3600.0
        ),
    ] = 1.0
    retry_longest: Annotated[float, _about("Longest pause before any retry.", ge=0.0, le=86_400.0)] = 60.0
    pause_longest: Annotated[
        float, _about("Longest pause of a server that fails more often than others; 0: never.", ge=0.0, le=86_400.0)
    ] = 30.0
    late: Annotated[
        Literal["drop", "serve"],
        _about("Whether a job whose deadline has passed is dropped as expired or served late."),
    ] = "drop"
    target_wait: Annotated[
        Positive | None,
        _about(f"Seconds of waiting to aim at; {TARGET_WAIT:g} if neither this nor V is given."),
    ] = None
    V: Annotated[Positive | None, _about("Weight of rewards against queues, instead of target_wait.")] = None
    reward: Annotated[RewardBounds, _about("Range of rewards.")] = RewardBounds()
    gamma: Annotated[float, _about("Cost of using a server; only of policy sabr.", gt=1.0, le=1e6)] = 1.2
    exploration: Annotated[
        Literal["thompson", "ucb", "none"], _about("How the policy tries what is not known yet.")
    ] = "thompson"
    work_conserving: Annotated[bool, _about("Whether no server idles while a job waits.")] = False
    backlog: Annotated[int, _about("Most waiting jobs of a class that has no limit of its own.", ge=1, le=LARGEST)] = (
        100_000
    )
    max_body: Annotated[int, _about("Most bytes of a request.", ge=1024, le=1 << 28)] = 1 << 20
    max_connections: Annotated[
        int, _about("Most connections at a time, or fewer if the system allows fewer descriptors.", ge=16, le=1_000_000)
    ] = 10_000
    max_connections_per_address: Annotated[
        int,
        _about("Most connections of one address at a time; those of this machine are not limited.", ge=1, le=LARGEST),
    ] = 1000
    rate: Annotated[float, _about("Most requests per second of each key; 0 is no limit.", ge=0.0)] = 2000.0
    retention: Annotated[
        Positive | None, _about("Seconds that finished and cancelled jobs are kept; for ever by default.")
    ] = None
    server_retention: Annotated[Positive, _about("Seconds that servers are kept after they went offline.")] = 604_800.0
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=LARGEST)] | None, _about("Seed of the scheduler; random by default.")
    ] = None
    checkpoint_every: Annotated[Positive, _about("Seconds between checkpoints of what was learnt.")] = 60.0
    log_requests: Annotated[bool, _about("Whether each request gets a log line.")] = False
    sample: Annotated[float, _about("Seconds between two samples for the dashboard.", ge=0.05, le=60.0)] = 1.0
    history: Annotated[float, _about("Seconds that samples are kept.", ge=1.0, le=86_400.0)] = 3600.0
    log_format: Annotated[Literal["text", "json"], _about("Format of log lines.")] = "text"
    metrics: Annotated[
        Literal["key", "open"], _about("Whether /metrics needs a key with scope read, or is open to everybody.")
    ] = "key"
    baseline_url: Annotated[
        Address | None, _about("Address of another service with the same jobs, shown beside this one.")
    ] = None
    baseline_key: Annotated[
        Annotated[str, Meta(min_length=1)] | None, _about("Key with scope read of the baseline.")
    ] = None
    job_class: Annotated[tuple[JobClassInfo, ...], _about("Job classes to start with; [[job_class]] in a file.")] = ()
    server_class: Annotated[
        tuple[ServerClassInfo, ...], _about("Server classes to start with; [[server_class]] in a file.")
    ] = ()
    namespace: Annotated[
        tuple[NamespaceInfo, ...], _about("Weights and limits of namespaces; [[namespace]] in a file.")
    ] = ()

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
        if self.policy != DEFAULT_POLICY and self.policy not in live_policies():
            raise BadInput(f"policy must be one of {', '.join(live_policies())}; got {_shown(self.policy)}")
        if self.shadow != NO_SHADOW and self.shadow not in live_policies():
            raise BadInput(
                f"shadow must be {NO_SHADOW} or one of {', '.join(live_policies())}; got {_shown(self.shadow)}"
            )
        _check_classes("job_class", self.job_class)
        _check_classes("server_class", self.server_class)
        _check_names("namespace", [one.name for one in self.namespace])


class LivePolicy(NamedTuple):
    """What the service needs to know of a policy: its class, None for the look-ahead, its settings, and what it can do.

    `by_job` policies accept jobs with features, eligible servers and a weight of their own.
    """

    kind: "type[Policy] | None"
    adjustable: tuple[str, ...]
    takes_weights: bool
    learns: bool
    by_job: bool = False

    @property
    def family(self) -> str | None:
        """The name of its class, which is stored with what was learnt."""
        return None if self.kind is None else self.kind.__name__


def live_policies() -> dict[str, LivePolicy]:
    """Return the policies that the service offers, by name; the default first."""
    from bilinq.policies.registry import POLICIES

    ahead = LivePolicy(None, ("target_wait", "V", "work_conserving", "exploration"), True, True, by_job=True)
    live = {name: one for name, one in POLICIES.items() if one.live}
    slots = {name: LivePolicy(one, one.adjustable, one.takes_weights, one.learns) for name, one in live.items()}
    return {LOOK_AHEAD: ahead} | slots


class SettingField(NamedTuple):
    """A setting that has a single value: its type with rules, its default, and what it means."""

    type: Any
    default: Any
    description: str


def _settings(struct: type[Struct], prefix: str = "") -> dict[str, SettingField]:
    return {
        prefix + field.name: SettingField(field.type, field.default, field.type.__metadata__[-1].description)
        for field in structs.fields(struct)
    }


_TYPES: dict[str, Any] = {field.name: field.type for field in structs.fields(ServiceSettings)}
SETTINGS = {name: one for name, one in _settings(ServiceSettings).items() if name not in STRUCTURED}
SETTINGS |= _settings(RewardBounds, "reward_")
"""Settings that are also options of `bilinq serve` and variables of the environment, by name."""
SECRET = ("database", "baseline_key")
"""Settings that may also be in a file of their own, which a variable of the environment names."""
RENAMED = {"rival_url": "baseline_url", "rival_key": "baseline_key"}
"""Old names of settings, which are accepted until the next version."""


def load(
    file: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ServiceSettings:
    """Return settings from a TOML file, the environment and options; later ones take precedence.

    The default of `file` is `BILINQ_CONFIG` of the environment, where a setting is `BILINQ_` and its name in capitals;
    classes are left to the file and the API. `BILINQ_DATABASE_FILE` and `BILINQ_BASELINE_KEY_FILE` name files with these
    secrets. Options that are None were not given. The range of rewards is `reward_low` and `reward_high`.

    Examples
    --------
    >>> load(options={"port": 8080}, environment={"BILINQ_PORT": "9000", "BILINQ_SLOT": "0.1"}).port
    8080
    """
    file = file or environment.get(f"{PREFIX}CONFIG") or None
    environment = _with_secrets(environment, options or {})
    named = {f"{PREFIX}{name.upper()}": RENAMED.get(name, name) for name in (*RENAMED, *SETTINGS)}
    layers = [
        {} if file is None else _read(Path(file)),
        _flat((named[key], key, environment[key]) for key in named if key in environment),
        _flat(
            (key, f"--{key.replace('_', '-')}", value) for key, value in (options or {}).items() if value is not None
        ),
    ]
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _merge(merged, layer)
    reward = merged.pop("reward", {})
    return ServiceSettings(**merged, reward=RewardBounds(**reward))


def _with_secrets(environment: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment with the secrets in files, except those that an option replaces."""
    named = [f"{PREFIX}{name.upper()}" for name in SECRET if options.get(name) is None]
    found = {name: read_secret(name, environment) for name in named if environment.get(name + SUFFIX)}
    return dict(environment) | {name: value for name, value in found.items() if value is not None}


def _read(file: Path) -> dict[str, Any]:
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "; run: bilinq init" if isinstance(error, FileNotFoundError) else ""
        raise BadInput(f"{file}: cannot be read; {error.strerror}{hint}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file}: is not valid TOML; {error}") from None
    raw = {RENAMED.get(key, key): value for key, value in raw.items()}
    for key in raw:
        if key not in _TYPES:
            raise BadInput(f"{file}: unknown key {key!r}{did_you_mean(key, _TYPES)}; known are {', '.join(_TYPES)}")
    values = {key: _value(_TYPES[key], value, f"{file}: {key}") for key, value in raw.items()}
    if "reward" in values:
        values["reward"] = {key: float(value) for key, value in raw["reward"].items()}
    return values


def _flat(given: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """Return values by name out of (name, name that the user knows, value); the range of rewards becomes one value."""
    values: dict[str, Any] = {}
    for name, shown, raw in given:
        value = _value(SETTINGS[name].type, raw, shown, strict=False)
        if name.startswith("reward_"):
            values.setdefault("reward", {})[name.removeprefix("reward_")] = value
        else:
            values[name] = value
    return values


def _value(kind: Any, raw: Any, shown: str, *, strict: bool = True) -> Any:
    """Return `raw` as a `kind`, or raise an error that begins with `shown`, the name that the user knows."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(plain) is Literal and raw not in get_args(plain):
        raise BadInput(f"{shown}: must be one of {', '.join(get_args(plain))}; got {_shown(raw)}")
    try:
        value = convert(raw, kind, strict=strict)
    except BadInput as error:
        text = str(error)
        glue = "" if text.startswith("[") else "." if getattr(error, "field", "") else ": "
        raise BadInput(f"{shown}{glue}{text}; got {_shown(raw)}") from None
    if not _finite(to_builtins(value)):
        raise BadInput(f"{shown}: must be finite; got {_shown(raw)}")
    return value


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return both; `target_wait` and `V` replace each other."""
    if over.keys() & {"target_wait", "V"}:
        under = {key: value for key, value in under.items() if key not in ("target_wait", "V")}
    reward = under.get("reward", {}) | over.get("reward", {})
    return under | over | ({"reward": reward} if reward else {})


def _check_classes(name: str, classes: Iterable[JobClassInfo | ServerClassInfo]) -> None:
    """Raise unless names differ and features have one length."""
    classes = list(classes)
    _check_names(name, [item.name for item in classes])
    known = {item.name: len(item.features) for item in classes}
    if len(set(known.values())) > 1:
        sizes = ", ".join(f"{size} in {key!r}" for key, size in known.items())
        raise BadInput(f"{name}: features must have one length; got {sizes}")


def _check_names(name: str, names: list[str]) -> None:
    for one, times in Counter(names).items():
        if times > 1:
            raise BadInput(f"{name}: names must differ; got {one!r} twice")


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _shown(value: Any, length: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= length else text[: length - 3] + "..."
