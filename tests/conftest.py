"""Makes the helpers next to this file importable from all tests, and Hypothesis repeat itself."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
