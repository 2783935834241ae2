"""Makes the helpers next to this file importable from all tests, Hypothesis repeat itself, and Ctrl-C work."""

import signal

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("connections")  # some files import it, and others use its fixture

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job ignores Ctrl-C, and passes that on
    signal.signal(signal.SIGINT, signal.default_int_handler)
