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

from bilinq.client.awaiting import AsyncClient
from bilinq.client.blocking import Client
from bilinq.client.held import Done, HeldJob
from bilinq.client.worker import Worker
from bilinq.live.wire.messages import JobClass, NewJob, NewKey, ServerClass, TurnKnobs, WorkFinish

__all__ = [
    "AsyncClient", "Client", "Done", "HeldJob", "JobClass", "NewJob", "NewKey", "ServerClass", "TurnKnobs", "WorkFinish",
    "Worker",
]  # fmt: skip
