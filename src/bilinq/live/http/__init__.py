"""The HTTP side of the service, and a door for other ASGI applications: `Server` serves them as it serves the service."""

from bilinq.live.http.routing import App, Gone, Receive, Scope, Send, while_connected
from bilinq.live.http.server import Server, address, listen

__all__ = ["App", "Gone", "Receive", "Scope", "Send", "Server", "address", "listen", "while_connected"]
