"""Clients of the live service, and a worker that serves its jobs.

With a service at http://127.0.0.1:8000 and keys in BILINQ_KEY, one process submits::

    from bilinq.client import Client

    with Client() as client:
        ref = client.submit("short", {"prompt": "hello"})
        print(client.wait(ref.id).result)

and others serve::

    from bilinq.client import Client, Done, Worker

    def serve(job):
        return Done(reward=0.8, result=job.payload["prompt"].upper())

    Worker(Client(), "gpu", serve).run()
"""

import warnings
from typing import Any

from bilinq.extras import optional_imports

with optional_imports():
    from bilinq.client.clients import AsyncClient, Client
    from bilinq.client.held import Done, HeldJob
    from bilinq.client.worker import Worker
    from bilinq.live.wire.access import NamespaceInfo, NewKey
    from bilinq.live.wire.messages import JobClassInfo, NewJob, ServerClassInfo, SettingsUpdate, WorkFinish

__all__ = [
    "AsyncClient", "Client", "Done", "HeldJob", "JobClassInfo", "NamespaceInfo", "NewJob", "NewKey", "ServerClassInfo",
    "SettingsUpdate", "WorkFinish", "Worker",
]  # fmt: skip

_RENAMED = {"JobClass": JobClassInfo, "ServerClass": ServerClassInfo, "TurnKnobs": SettingsUpdate}


def __getattr__(name: str) -> Any:
    """Return a class by its old name, which will be removed in the next version."""
    if name not in _RENAMED:
        raise AttributeError(f"module 'bilinq.client' has no attribute {name!r}")
    new = _RENAMED[name]
    text = f"bilinq.client.{name} is deprecated and will be removed in the next version; use {new.__name__}"
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    return new
