"""Log lines on standard error: one for each event, `name=value` pairs that both people and programs read."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

_PLAIN = re.compile(r"[^\s\"=\\]+")
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}


class Line(logging.Formatter):
    """Formats a record as one line; `extra` gives more pairs, an exception comes last with its trace."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        pairs: dict[str, Any] = {"at": at, "level": record.levelname.lower(), "event": record.getMessage()}
        extra = {name: value for name, value in vars(record).items() if name not in _USUAL}
        pairs |= {
            name: value for name, value in extra.items() if name[0] != "_"
        }  # Ray, if loaded, leaves private marks
        if record.exc_info:
            pairs["trace"] = self.formatException(record.exc_info)
        return " ".join(f"{name}={_quoted(value)}" for name, value in pairs.items())


def _quoted(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.isprintable() else json.dumps(text)


def log_to(stream: TextIO = sys.stderr, level: int = logging.INFO) -> None:
    """Send every log record and warning of this process to `stream`, of the web server only where something broke."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Line())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("bilinq").setLevel(level)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
