"""What travels over HTTP: bodies of requests and responses, queries, samples for viewers; `convert` checks such values."""

from bilinq.live.wire.queries import convert

__all__ = ["convert"]
