"""Log lines on standard error, one for each event: `name=value` pairs that people and programs can read, or JSON.

A line that is written while a request is answered contains its id; no line contains a key or a password.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

Format = Literal["text", "json"]

REQUEST: ContextVar[str | None] = ContextVar("request", default=None)  # the id of the request that is being answered

_UNQUOTED = re.compile(r"[^\s\"=\\]+")
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}
_SECRETS = (
    (re.compile(r"\bbq_([a-z0-9]{8})_[\w-]+"), r"bq_\1_..."),
    (re.compile(r"://([^/\s:@]*):[^/\s@]+@"), r"://\1:...@"),
)
"""Keys, of which the prefix stays, and passwords in addresses of databases."""


class TextLine(logging.Formatter):
    """Formats a record as one line of pairs; those of `extra` follow, and the trace of an exception is last."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in _pairs(record, self).items())


class JsonLine(logging.Formatter):
    """Formats a record as a JSON object on one line, with the same names."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_pairs(record, self), default=str)


FORMATS: dict[Format, type[logging.Formatter]] = {"text": TextLine, "json": JsonLine}


def log_to(stream: TextIO = sys.stderr, level: int = logging.INFO, form: Format = "text") -> None:
    """Send every log record and warning of this process to `stream`; of other libraries only warnings and errors."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(FORMATS[form]())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("bilinq").setLevel(level)


class Seldom:
    """Logs one kind of event at most every `seconds`; `times` in a line counts the events since the last line.

    For events that a client can cause as often as it likes.
    """

    def __init__(
        self, logger: logging.Logger, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger, self._seconds, self._clock = logger, seconds, clock
        self._due, self._times = float("-inf"), 0

    def warning(self, event: str, **about: Any) -> None:
        """Count the event, and log a warning if the last one is long enough ago."""
        self._log(logging.WARNING, event, about)

    def info(self, event: str, **about: Any) -> None:
        """Do the same with a line that is no warning."""
        self._log(logging.INFO, event, about)

    def _log(self, level: int, event: str, about: dict[str, Any]) -> None:
        self._times += 1
        now = self._clock()
        if now >= self._due:
            self._logger.log(level, event, extra=about | {"times": self._times})
            self._due, self._times = now + self._seconds, 0


def _pairs(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, Any]:
    """Return the pairs of a line: time, level, event, request, those of `extra`, trace."""
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    pairs: dict[str, Any] = {"at": at, "level": record.levelname.lower(), "event": record.getMessage()}
    request = REQUEST.get()
    if request is not None:
        pairs["request"] = request
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    pairs |= {name: value for name, value in extra.items() if name[0] != "_"}  # Ray, if loaded, adds private attributes
    if record.exc_info:
        pairs["trace"] = formatter.formatException(record.exc_info)
    return {name: _safe(value) for name, value in pairs.items()}


def _safe(value: Any) -> Any:
    """Return a value without secrets: numbers as they are, everything else as text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    for secret, shown in _SECRETS:
        text = secret.sub(shown, text)
    return text


def _quoted(value: Any) -> str:
    text = str(value)
    return text if _UNQUOTED.fullmatch(text) and text.isprintable() else json.dumps(text)
