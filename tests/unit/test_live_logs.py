"""Log lines: one for each event whatever it contains, and every value can be read back."""

import contextvars
import io
import json
import logging
import warnings

import pytest

from bilinq.live.keys import make_key
from bilinq.live.logs import FORMATS, REQUEST, Format, log_to


def line(message: str, form: Format = "text", **extra: object) -> str:
    record = logging.makeLogRecord(
        {"name": "bilinq.live", "levelname": "INFO", "msg": message, "created": 0.0, **extra}
    )
    return FORMATS[form]().format(record)


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


def test_a_line_may_be_json() -> None:
    told = line("two\nlines", "json", path="/x", status=200, seconds=0.5, leads=True, key=None, other={1})
    assert "\n" not in told
    assert json.loads(told) == {
        "at": "1970-01-01T00:00:00.000Z", "level": "info", "event": "two\nlines", "path": "/x", "status": 200,
        "seconds": 0.5, "leads": True, "key": None, "other": "{1}",
    }  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_a_line_carries_the_request_that_is_being_answered(form: Format) -> None:
    def in_request() -> str:
        REQUEST.set("5f0c-1")
        return line("x", form)

    assert "5f0c-1" in contextvars.copy_context().run(in_request)
    assert "request" not in line("x", form)


@pytest.mark.parametrize("form", FORMATS)
def test_keys_and_passwords_never_reach_a_line(form: Format) -> None:
    key = make_key()
    for text in (
        key,
        f"the key {key} is bad",
        f"/v1/jobs/{key}",
        f"?key={key}&x=1",
        {"Authorization": f"Bearer {key}"},
    ):
        told = line(str(text), form, path=text) + line("x", form, trace=text)
        assert key[12:] not in told
        assert key[3:11] in told  # which names it, and is no secret
    told = line("cannot reach postgresql://user:pass:word@host:5432/name?x=1", form, url="postgresql://:hunter2@/name")
    assert "pass:word" not in told
    assert "hunter2" not in told
    assert "postgresql://user:...@host:5432/name" in told


def test_traces_and_warnings_stay_on_their_lines() -> None:
    stream = io.StringIO()
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        warnings.simplefilter("always")
        logging.captureWarnings(False)  # another test may have left them captured
        log_to(stream)
        try:
            raise ZeroDivisionError("boom")
        except ZeroDivisionError:
            logging.getLogger("bilinq.live").exception("a part failed")
        logging.getLogger("bilinq.live").info("told")
        warnings.warn("care", stacklevel=1)
        logging.getLogger("other").info("not told")
    finally:
        logging.captureWarnings(False)
        logging.getLogger().handlers[:], level = before
        logging.getLogger().setLevel(level)
        logging.getLogger("bilinq").setLevel(logging.NOTSET)
    first, second, third = stream.getvalue().splitlines()
    assert 'event="a part failed"' in first
    assert "ZeroDivisionError: boom" in json.loads(first.partition("trace=")[2])
    assert "event=told" in second
    assert "level=warning" in third
    assert "UserWarning: care" in third
