"""The dashboard: a page and its files, which every process serves itself and to everybody; the data in it need a key."""

import hashlib
from collections.abc import Iterable
from importlib import resources
from typing import NamedTuple

from bilinq.live.http.asgi import App, Receive, Scope, Send
from bilinq.live.http.problems import NoSuchPath, WrongMethod

KINDS = {
    "html": b"text/html; charset=utf-8", "css": b"text/css; charset=utf-8", "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}  # fmt: skip
"""Content types by the end of a file's name; files of another kind are not served."""

POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing but files of this service is loaded, no script or style stands in the page, no text becomes markup."""

FOLDER = "/dashboard/"
METHODS = ("GET", "HEAD")


class File(NamedTuple):
    """A file, and the headers that go with it."""

    body: bytes
    tag: bytes
    headers: list[tuple[bytes, bytes]]


class Pages:
    """The application with the dashboard at / and its files under /dashboard/."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.files = load()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        if path != "/" and not path.startswith(FOLDER):
            await self.app(scope, receive, send)
            return
        if path not in self.files:
            raise NoSuchPath(f"the dashboard has no file {path[:200]!r}")
        if scope["method"] not in METHODS:
            raise WrongMethod(scope["method"], ", ".join(METHODS))
        scope["route"] = path  # under which answers are counted
        file = self.files[path]
        if is_known(file.tag, scope["headers"]):
            await send({"type": "http.response.start", "status": 304, "headers": [*file.headers]})
            await send({"type": "http.response.body", "body": b""})
        else:
            length = (b"content-length", str(len(file.body)).encode())
            await send({"type": "http.response.start", "status": 200, "headers": [*file.headers, length]})
            await send({"type": "http.response.body", "body": file.body})


def load() -> dict[str, File]:
    """Return the dashboard's files by their paths."""
    files = {}
    for item in resources.files("bilinq.live").joinpath("dashboard").iterdir():
        kind = KINDS.get(item.name.rpartition(".")[2])
        if kind is not None:
            files["/" if item.name == "index.html" else FOLDER + item.name] = make_file(item.read_bytes(), kind)
    return files


def make_file(body: bytes, kind: bytes) -> File:
    """Return a file that browsers keep, but ask about each time whether it is still the same."""
    tag = b'"' + hashlib.sha256(body).hexdigest()[:32].encode() + b'"'
    headers = [
        (b"content-type", kind),
        (b"etag", tag),
        (b"cache-control", b"no-cache"),
        (b"content-security-policy", POLICY),
    ]
    return File(body, tag, headers)


def is_known(tag: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Tell whether the one who asks has the file with this tag already."""
    given = [value for name, value in headers if name == b"if-none-match"]
    return any(tag in (part.strip().removeprefix(b"W/") for part in value.split(b",")) for value in given)
