"""Settings of the gateway, read from a TOML file: back ends, tenants, and what answers are worth."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from bilinq.errors import BadInput, did_you_mean
from bilinq.live.wire import convert
from bilinq.secret_files import read_secret

ANYBODY = "anybody"  # the tenant where none is configured
AUTO = "auto"  # the model that stands for all back ends
MILLION = 1e6

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,99}$")]
Text = Annotated[str, Meta(min_length=1, max_length=500)]
Positive = Annotated[float, Meta(gt=0.0, le=1e9)]
Cost = Annotated[float, Meta(ge=0.0, le=1e9)]
Whole = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Feature = Literal["tools", "vision", "json"]
Endpoint = Literal["chat", "completions", "embeddings"]
Scope = Literal["submit", "read", "admin"]


class Backend(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A back end: any address with OpenAI's API.

    Attributes
    ----------
    name : str
        How the gateway, its metrics and callers name it.
    url : str
        What comes before `/chat/completions`.
    model : str
        What the back end calls its model; default: `name`.
    key_env : str, optional
        The environment variable with its key; with _FILE added to the name, a variable that names a file with the key.
    price_in, price_out, price_cached : float
        Price of a million tokens of prompts, of answers, and of the part of prompts that the back end had cached;
        `price_cached` is that of prompts by default.
    context, max_output : int
        Most tokens of prompt and answer together, and of an answer.
    concurrency : int
        Most requests at a time.
    serves : tuple of "chat", "completions" and "embeddings"
    features : tuple of "tools", "vision" and "json"
    region, tags : str, optional, and tuple of str
        Words by which tenants and requests can choose back ends.
    stream_usage : bool
        Whether it accepts `stream_options.include_usage`, which the gateway then asks for, to know what a stream costs.
    first_timeout, gap_timeout : float
        Seconds until an answer must begin, and between two parts of it.
    """

    name: Name
    url: Annotated[str, Meta(pattern=r"^https?://[^?#\s]+$")]
    model: Text | None = None
    key_env: Text | None = None
    price_in: Cost = 0.0
    price_out: Cost = 0.0
    price_cached: Cost | None = None
    context: Whole = 128_000
    max_output: Whole = 4096
    concurrency: Annotated[int, Meta(ge=1, le=100_000)] = 8
    serves: tuple[Endpoint, ...] = ("chat", "completions")
    features: tuple[Feature, ...] = ("tools", "json")
    region: Name | None = None
    tags: tuple[Name, ...] = ()
    stream_usage: bool = True
    first_timeout: Positive = 60.0
    gap_timeout: Positive = 30.0

    @property
    def upstream_model(self) -> str:
        """What the back end calls its model."""
        return self.model or self.name

    @property
    def words(self) -> frozenset[str]:
        """Its name and tags, its region, and its model: what a wish may name."""
        return frozenset(word for word in (self.name, self.model, self.region, *self.tags) if word)

    def price(self, prompt: float, answer: float, cached: float = 0.0) -> float:
        """Return the price of a request with so many tokens, of which `cached` of the prompt were cached."""
        reduced = self.price_in if self.price_cached is None else self.price_cached
        return ((prompt - cached) * self.price_in + cached * reduced + answer * self.price_out) / MILLION

    def secret(self) -> str | None:
        """Return its key, from the environment or a file."""
        return None if self.key_env is None else _secret(f"key_env of backend {self.name!r}", self.key_env)


class Tenant(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Who may ask.

    Attributes
    ----------
    name : str
    key_env, key_sha256 : str, optional
        The environment variable with its key (or, with _FILE added, with the name of a file), or the SHA-256 of the key.
        One of them.
    weight : float
        Its share of the back ends while several tenants wait.
    budget : float, optional
        Most money for a day (UTC).
    backends : tuple of str
        Names, tags or regions of the back ends that it may use; all if there are none.
    scopes : tuple of "submit", "read" and "admin"
        `submit` sends requests, `read` sees the page, metrics and decisions of all tenants; `admin` is both.
    """

    name: Name
    key_env: Text | None = None
    key_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | None = None
    weight: Positive = 1.0
    budget: Positive | None = None
    backends: tuple[Name, ...] = ()
    scopes: tuple[Scope, ...] = ("submit",)

    def __post_init__(self) -> None:
        if (self.key_env is None) == (self.key_sha256 is None):
            raise ValueError(f"tenant {self.name!r} must have either key_env or key_sha256")

    def secret(self) -> str:
        """Return its key from the environment or a file."""
        assert self.key_env is not None
        return _secret(f"key_env of tenant {self.name!r}", self.key_env)


class Worth(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What time and money cost, in units of quality: an answer of the best quality, at once and for nothing, is worth 1.

    Attributes
    ----------
    second, first_second : float
        What a second until the end of the answer costs, and, in addition, a second until its first token.
    money : float
        What one unit of money costs, in the currency of the prices.
    switch : float
        What it costs to move a session to another back end that does not report cached tokens.
    wait : float
        What a second of waiting for a back end costs while nobody else waits; it costs more in a long queue. Zero: the price
        follows `target_wait`.
    """

    second: Cost = 0.01
    first_second: Cost = 0.0
    money: Cost = 10.0
    switch: Cost = 0.02
    wait: Cost = 0.0


class Config(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """All settings; times are in seconds. `bilinq init gateway` writes a file with comments.

    Attributes
    ----------
    backend, tenant : tuples of Backend and Tenant
        At least one back end. Without tenants everybody on this machine may send requests, and `host` must be a loopback
        address.
    host, port : str, int
        Where to listen; port 0 is any that is free.
    database : str, optional
        `sqlite:///gateway.db` or `postgresql://...`, where the log and what is learnt are kept; None: only in memory.
    target_wait : float
        How long requests may wait on average for a back end that suits them better than those that are free; not used
        where `worth` has the price of a second of waiting.
    exploration : "thompson", "ucb" or "none"
        How back ends are tried of which little is known: by draws, by adding to their value, or not at all.
    backlog : int
        Most waiting requests of a tenant.
    attempts : int
        Back ends that are tried for a request at most.
    max_body, max_connections : int
        Most bytes of a request, and connections at a time.
    judge, embedding : str, optional
        Functions `module:function`; see docs/gateway.md.
    shadow : bool
        Whether to route by a plain rule, and report what the scheduler would have done.
    checkpoint_every : float
        Seconds between two checkpoints of what was learnt.
    log_requests : bool
        Whether each request gets a log line.
    """

    backend: Annotated[tuple[Backend, ...], Meta(min_length=1)]
    tenant: tuple[Tenant, ...] = ()
    worth: Worth = field(default_factory=Worth)
    host: Text = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    database: Annotated[str, Meta(pattern=r"^(sqlite:///.+|postgres(ql)?://.+)$")] | None = None
    target_wait: Positive = 0.5
    exploration: Literal["thompson", "ucb", "none"] = "thompson"
    backlog: Whole = 1000
    attempts: Whole = 3
    max_body: Annotated[int, Meta(ge=1024, le=1 << 30)] = 16 << 20
    max_connections: Annotated[int, Meta(ge=16, le=1_000_000)] = 10_000
    judge: Text | None = None
    embedding: Text | None = None
    shadow: bool = False
    checkpoint_every: Positive = 30.0
    log_requests: bool = False
    log_format: Literal["text", "json"] = "text"
    seed: Annotated[int, Meta(ge=0, le=1 << 62)] = 0

    def __post_init__(self) -> None:
        for what, some in (("backend", self.backend), ("tenant", self.tenant)):
            names = [one.name for one in some]
            if len(set(names)) < len(names):
                raise ValueError(f"names of [[{what}]] must differ; got {', '.join(names)}")
        if AUTO in {one.name for one in self.backend}:
            raise ValueError(f"name of a backend must not be {AUTO!r}, which stands for all")
        if not self.tenant and not is_loopback(self.host):
            raise ValueError(f"host must be a loopback address where there is no [[tenant]]; got {self.host!r}")
        known = sorted(set().union(*(one.words for one in self.backend)))
        for tenant in self.tenant:
            for word in tenant.backends:
                if word not in known:
                    rule = f"backends of tenant {tenant.name!r} must be names, tags or regions of back ends"
                    raise ValueError(f"{rule}; got {word!r}{did_you_mean(word, known)}")

    @property
    def tenants(self) -> dict[str, Tenant | None]:
        """The tenants by name; one without settings where none is configured."""
        return {one.name: one for one in self.tenant} or {ANYBODY: None}


def load(file: Path) -> Config:
    """Return the settings of a file; an error names the file, the setting, the rule and the value."""
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "; run: bilinq init gateway" if isinstance(error, FileNotFoundError) else ""
        raise BadInput(f"{file}: cannot be read; {error.strerror}{hint}") from None
    except ValueError as error:
        raise BadInput(f"{file}: is not valid TOML; {error}") from None
    try:
        _check_names(raw, Config, "")
        config: Config = convert(raw, Config)
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    return config


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _check_names(raw: Any, kind: type[Struct], where: str) -> None:
    """Raise if a table has a name that is no setting, and say which one may be meant."""
    if not isinstance(raw, Mapping):
        return
    for name, value in raw.items():
        if name not in kind.__struct_fields__:
            place = f" in [{where}]" if where else ""
            raise BadInput(f"{name!r}{place} is not a setting{did_you_mean(name, kind.__struct_fields__)}")
        tables: dict[str, type[Struct]] = {"backend": Backend, "tenant": Tenant, "worth": Worth}
        inner = tables.get(name)
        for one in value if isinstance(value, list) else [value]:
            if inner is not None:
                _check_names(one, inner, name)


def _secret(what: str, variable: str) -> str:
    value = read_secret(variable)
    if not value:
        raise BadInput(f"{what} must name an environment variable that is set, or {variable}_FILE; got {variable!r}")
    return value
