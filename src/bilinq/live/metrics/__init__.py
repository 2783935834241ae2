"""What the service counts and measures of itself, and how Prometheus reads it."""

from bilinq.live.metrics.meters import CommitMeter, Histogram, Meters

__all__ = ["CommitMeter", "Histogram", "Meters"]
