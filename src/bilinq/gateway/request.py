"""A request as it came: what it asks, how long it is, what it needs, and which back ends its caller wants."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from bilinq.gateway.config import AUTO, Endpoint, Feature
from bilinq.gateway.errors import bad
from bilinq.texts import SIGNS, code_signs

BYTES_PER_TOKEN = 4.0  # of UTF-8 text, roughly, where a back end does not report the number of tokens
IMAGE_TOKENS = 800.0  # of an image, roughly
LONGEST_DEADLINE = 86_400.0
PREFIX = {"chat": "chatcmpl-", "completions": "cmpl-", "embeddings": "embd-"}  # of the ids of answers, as OpenAI's
SESSION, DEADLINE, TAGS = b"x-bilinq-session", b"x-bilinq-deadline", b"x-bilinq-tags"

Headers = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one caller asks.

    Attributes
    ----------
    id : str
        Also the id of the answer.
    tenant : str
    endpoint : "chat", "completions" or "embeddings"
    body : dict
        The body as it came; back ends get it with another `model`.
    text, asked : str
        All text of the prompt, and what was asked last.
    about_code : bool
        Whether there are signs of code in its text.
    prompt_tokens : float
        An estimate.
    max_tokens : int, optional
        The caller's limit of the answer.
    turns : int
    needs : frozenset of "tools", "vision" and "json"
    models : tuple of str
        Models or back ends that the caller names; empty for all.
    tags : tuple of str
        Tags or regions of which a back end must have all.
    session : str, optional
        What requests that belong together have in common.
    deadline : float, optional
        Seconds in which the answer must begin.
    """

    id: str
    tenant: str
    endpoint: Endpoint
    body: dict[str, Any]
    text: str
    asked: str
    about_code: bool
    prompt_tokens: float
    max_tokens: int | None
    turns: int
    needs: frozenset[Feature]
    models: tuple[str, ...]
    tags: tuple[str, ...]
    session: str | None
    deadline: float | None

    @property
    def stream(self) -> bool:
        """Whether the answer is a stream of events."""
        return bool(self.body.get("stream"))


def new_id(endpoint: Endpoint) -> str:
    """Return a new id of a request and its answer."""
    return PREFIX[endpoint] + secrets.token_hex(12)


def parse(endpoint: Endpoint, tenant: str, raw: bytes, headers: Headers) -> Request:
    """Return the request in a body; fields that the gateway does not know are left to the back end to check."""
    body = _decode(raw)
    _check_types(body)
    messages = _messages(endpoint, body)
    texts = [text for message in messages for text in _texts(message)]
    images = sum(_images(message) for message in messages)
    tools = body.get("tools") or body.get("functions")
    size = sum(map(_size, texts)) + (_size(msgspec.json.encode(tools).decode()) if tools else 0)
    text = "\n".join(texts)
    asked = next((m for m in reversed(messages) if m.get("role") in (None, "user")), messages[-1])
    return Request(
        id=new_id(endpoint), tenant=tenant, endpoint=endpoint, body=body, text=text,
        asked="\n".join(_texts(asked)), about_code=code_signs(text) >= SIGNS,
        prompt_tokens=max(size / BYTES_PER_TOKEN + IMAGE_TOKENS * images, 1.0),
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        turns=sum(m.get("role") == "user" for m in messages),
        needs=frozenset(_needs(body, tools, images)), models=_models(body.get("model")),
        tags=_words(headers.get(TAGS)), session=_session(tenant, messages, headers),
        deadline=_deadline(headers.get(DEADLINE)),
    )  # fmt: skip


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise bad(f"the body must be JSON; {error}") from None
    if not isinstance(body, dict):
        raise bad("the body must be a JSON object")
    return body


def _check_types(body: Mapping[str, Any]) -> None:
    """Raise unless the fields that the gateway reads are of the right type."""
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise bad(f"{name} must be a positive whole number; got {value!r:.50}", name)
    for name, kind, rule in (
        ("stream", bool, "true or false"),
        ("tools", list, "a list"),
        ("functions", list, "a list"),
    ):
        if body.get(name) is not None and not isinstance(body[name], kind):
            raise bad(f"{name} must be {rule}; got {body[name]!r:.50}", name)


def _messages(endpoint: Endpoint, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the prompt as messages, whatever the endpoint calls it."""
    if endpoint == "chat":
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise bad("messages must be a list of at least one message", "messages")
        return messages
    name = "prompt" if endpoint == "completions" else "input"
    prompt = body.get(name)
    prompts: list[Any] = prompt if isinstance(prompt, list) else [prompt]
    if not prompts or not all(isinstance(one, str | int | list) for one in prompts):
        raise bad(f"{name} must be text, or a list of texts or tokens; got {prompt!r:.50}", name)
    if all(isinstance(one, int) for one in prompts):
        prompts = [prompts]
    return [{"content": one if isinstance(one, str) else " " * int(BYTES_PER_TOKEN * len(one))} for one in prompts]


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a message, whose content may be text or a list of parts."""
    content = message.get("content")
    for part in content if isinstance(content, list) else [{"text": content}]:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]


def _images(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return sum(isinstance(part, dict) and part.get("type") in ("image_url", "input_image") for part in parts)


def _needs(body: Mapping[str, Any], tools: Any, images: int) -> Iterator[Feature]:
    if tools:
        yield "tools"
    if images:
        yield "vision"
    if wants_json(body):
        yield "json"


def wants_json(body: Mapping[str, Any]) -> bool:
    """Tell whether the answer must be JSON."""
    wanted = body.get("response_format")
    return isinstance(wanted, dict) and wanted.get("type") in ("json_object", "json_schema")


def _models(model: Any) -> tuple[str, ...]:
    """Return the models that a caller names, as text, as text with commas, or as a list; none stands for all."""
    if model is None:
        return ()
    names: list[Any] = model if isinstance(model, list) else model.split(",") if isinstance(model, str) else [None]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise bad(f"model must be {AUTO}, a name, or a list of names; got {model!r:.100}", "model")
    found = tuple(dict.fromkeys(name.strip() for name in names))
    return () if AUTO in found else found


def _words(header: bytes | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (header or b"").decode("latin-1").split(",") if word.strip())


def _deadline(header: bytes | None) -> float | None:
    if header is None:
        return None
    text = header.decode("latin-1")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 < seconds <= LONGEST_DEADLINE:
        raise bad(f"{DEADLINE.decode()} must be seconds, above 0 and at most {LONGEST_DEADLINE:g}; got {text!r:.50}")
    return seconds


def _session(tenant: str, messages: list[dict[str, Any]], headers: Headers) -> str | None:
    """Return what the requests of a conversation have in common: the caller's name for it, or how it began."""
    named = headers.get(SESSION)
    if named is not None:
        return f"{tenant}:{named.decode('latin-1')[:200]}"
    first = next((k for k, message in enumerate(messages) if message.get("role") == "user"), None)
    if first is None:
        return None
    digest = hashlib.blake2b(digest_size=12)
    for message in messages[: first + 1]:
        for text in _texts(message):
            digest.update(text.encode("utf-8", "replace"))
    return f"{tenant}:{digest.hexdigest()}"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
