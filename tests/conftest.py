"""Makes the helpers next to this file importable from all tests."""
