"""From a path to what answers there."""

import re
from collections.abc import Mapping

from bilinq.live.api.asgi import App, Receive, Scope, Send
from bilinq.live.api.problems import NoSuchPath

_NAME = re.compile(r"{(\w+)(:path)?}")


class Paths:
    """Finds the application of a path by a look into a table, or, where paths hold names, by trying them in order.

    `{name}` stands for anything without a slash and `{name:path}` for anything at all; `scope["path_params"]` tells what,
    and `scope["route"]` the path with these.
    """

    def __init__(self, apps: Mapping[str, App]) -> None:
        self.fixed = {path: app for path, app in apps.items() if "{" not in path}
        self.named = [(pattern(path), app, path) for path, app in apps.items() if "{" in path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app, scope["path_params"], scope["route"] = self.find(scope["path"])
        await app(scope, receive, send)

    def find(self, path: str) -> tuple[App, dict[str, str], str]:
        """Return the application of a path, the names in it, and the path as it is written in the table."""
        if path in self.fixed:
            return self.fixed[path], {}, path
        for named, app, form in self.named:
            match = named.fullmatch(path)
            if match:
                return app, match.groupdict(), form
        raise NoSuchPath(f"nothing is served at {path[:200]!r}; /openapi.json describes what is")


def pattern(path: str) -> re.Pattern[str]:
    """Return an expression that matches whole paths of this form."""
    form = _NAME.sub(lambda name: f"(?P<{name[1]}>{'.*' if name[2] else '[^/]+'})", path)
    return re.compile(form, re.DOTALL)
