"""The service around the scheduler: memory, slots, leases, and what goes to the store."""

from bilinq.live.service.service import Service

__all__ = ["Service"]
