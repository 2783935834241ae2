"""Watching a service: an hour of samples, and a stream of new ones to all viewers."""

from bilinq.live.watch.watcher import Watcher

__all__ = ["Watcher"]
