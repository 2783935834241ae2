"""Clients of the live service, and a worker; see `bilinq.client`."""

from bilinq.live.client.awaiting import AsyncClient
from bilinq.live.client.blocking import Client
from bilinq.live.client.held import Done, HeldJob
from bilinq.live.client.worker import Worker

__all__ = ["AsyncClient", "Client", "Done", "HeldJob", "Worker"]
