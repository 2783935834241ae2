"""A span for each request, where OpenTelemetry records."""

from bilinq.live import tracing
from bilinq.live.api.asgi import App, Message, Receive, Scope, Send
from bilinq.live.api.headers import OTHER


class Traced:
    """The application with a span for each request, named after its method and the path as the table has it."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        method = scope["method"]
        with tracing.request_span(method, scope["request"], scope["headers"]) as span:

            async def send_noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    tracing.describe(span, method, scope.get("route", OTHER), message["status"])
                await send(message)

            await self.app(scope, receive, send_noting)
