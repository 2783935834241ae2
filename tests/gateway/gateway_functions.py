"""Functions that settings of tests name."""

import zlib


def embed(text: str) -> list[float]:
    """Return 100 numbers that depend on a text."""
    return [zlib.crc32(f"{k} {text}".encode()) / 2**32 for k in range(100)]


def broken(text: str) -> list[float]:
    """Fail."""
    raise RuntimeError("no model is loaded")
