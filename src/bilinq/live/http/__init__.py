"""The HTTP side of the service, and a door for other ASGI applications: `Server` serves them as it serves the service."""

from bilinq.extras import optional_imports

with optional_imports():
    from bilinq.live.http.bodies import check_nesting
    from bilinq.live.http.crowd import Limits, possible
    from bilinq.live.http.routing import App, BadJson, Gone, Receive, Scope, Send, while_connected
    from bilinq.live.http.server import Server, address, listen

__all__ = [
    "App",
    "BadJson",
    "Gone",
    "Limits",
    "Receive",
    "Scope",
    "Send",
    "Server",
    "address",
    "check_nesting",
    "listen",
    "possible",
    "while_connected",
]
