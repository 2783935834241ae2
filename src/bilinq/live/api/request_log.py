"""A log line for each request, for those who want it."""

import logging
import time

from bilinq.live.api.asgi import App, Message, Receive, Scope, Send

log = logging.getLogger("bilinq.live.api")


class RequestLog:
    """The application with a line for each request: who asked what, the status, and how long it took."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; status 0 is a client that went away."""
        status = 0
        start = time.perf_counter()

        async def send_noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, send_noting)
        finally:
            about = {name: scope.get(name) for name in ("method", "path", "key")}
            log.info("request", extra=about | {"status": status, "seconds": f"{time.perf_counter() - start:.4f}"})
