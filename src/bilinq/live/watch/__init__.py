"""What those see who watch the service: an hour of moments, and a feed of what happens now."""

from bilinq.live.watch.watch import Watch

__all__ = ["Watch"]
