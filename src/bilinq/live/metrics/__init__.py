"""Metrics: what the service counts and measures about itself, and the page that Prometheus reads."""

from bilinq.live.metrics.meters import CommitMeter, Histogram, Meters

__all__ = ["CommitMeter", "Histogram", "Meters"]
