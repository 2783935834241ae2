"""Log lines: one for each event whatever it holds, and every value can be read back."""

import io
import json
import logging
import warnings

import pytest

from bilinq.live.logs import Line, log_to


def line(message: str, **extra: object) -> str:
    record = logging.makeLogRecord(
        {"name": "bilinq.live", "levelname": "INFO", "msg": message, "created": 0.0, **extra}
    )
    return Line().format(record)


def test_a_line_is_made_of_pairs() -> None:
    told = line("serving", address="http://127.0.0.1:80", leads=True, _private="of another library")
    assert told == "at=1970-01-01T00:00:00.000Z level=info event=serving address=http://127.0.0.1:80 leads=True"


@pytest.mark.parametrize(
    "value", ["two words", "", "a=b", 'quo"te', "line\nbreak\r", "\x1b[31m", "back\\slash", "\u2028"]
)
def test_what_would_break_a_line_is_quoted(value: str) -> None:
    told = line("x", path=value)
    assert told.isprintable()
    assert json.loads(told.partition("path=")[2]) == value


def test_traces_and_warnings_stay_on_their_lines() -> None:
    stream = io.StringIO()
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        warnings.simplefilter("always")
        log_to(stream)
        try:
            raise ZeroDivisionError("boom")
        except ZeroDivisionError:
            logging.getLogger("bilinq.live").exception("a part failed")
        logging.getLogger("bilinq.live").info("told")
        warnings.warn("care", stacklevel=1)
        logging.getLogger("uvicorn.error").warning("not told")
        logging.getLogger("other").info("not told")
    finally:
        logging.captureWarnings(False)
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)
        for name in ("bilinq", "uvicorn"):
            logging.getLogger(name).setLevel(logging.NOTSET)
    first, second, third = stream.getvalue().splitlines()
    assert 'event="a part failed"' in first
    assert "ZeroDivisionError: boom" in json.loads(first.partition("trace=")[2])
    assert "event=told" in second
    assert "level=warning" in third
    assert "UserWarning: care" in third
