"""Watching a service: an hour of samples, and a stream of new ones to all viewers."""

from bilinq.extras import optional_imports

with optional_imports():
    from bilinq.live.watch.watcher import Watcher

__all__ = ["Watcher"]
