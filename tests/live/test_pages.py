"""The dashboard's files: who gets them, with which headers, and that they load nothing from elsewhere."""

import re
from importlib import resources
from pathlib import Path

import pytest
from asgi import Answer, ask
from fake_service import make_fake

FOLDER = Path(str(resources.files("bilinq.live"))) / "dashboard"
FILES = sorted(path.name for path in FOLDER.iterdir())


def get(path: str, method: str = "GET", **headers: str) -> Answer:
    app, _ = make_fake()
    return ask(app, method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_the_page_needs_no_key_and_may_load_only_its_own_files() -> None:
    answer = get("/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.body == (FOLDER / "index.html").read_bytes()
    rules = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    assert rules["default-src"] == "'none'"
    assert {rules[kind] for kind in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert rules["frame-ancestors"] == rules["form-action"] == rules["base-uri"] == "'none'"


@pytest.mark.parametrize("name", [name for name in FILES if name != "index.html"])
def test_a_file_is_served_with_its_content_type(name: str) -> None:
    answer = get(f"/dashboard/{name}")
    kinds = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
    assert (answer.status, answer.headers["content-type"]) == (200, kinds[name.rpartition(".")[2]])
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.body == (FOLDER / name).read_bytes()


def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    first = get("/dashboard/main.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = get("/dashboard/main.js", if_none_match=known)
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    assert get("/dashboard/main.js", if_none_match='"other"').status == 200
    assert get("/dashboard/style.css").headers["etag"] != tag


@pytest.mark.parametrize(
    "path", ["/dashboard", "/dashboard/", "/dashboard/index.html", "/dashboard/../http/app.py", "/index.html"]
)
def test_nothing_else_is_served(path: str) -> None:
    assert get(path).status == 404


def test_a_follower_serves_the_page_itself() -> None:
    app, service = make_fake()
    service.following = True
    assert ask(app, "GET", "/").status == 200
    assert ask(app, "GET", "/v1/me").status == 503


def test_the_page_can_only_be_read() -> None:
    answer = get("/", method="POST")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("name", FILES)
def test_no_foreign_address_and_nothing_inline(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text.replace("http://www.w3.org/2000/svg", ""))
    assert not re.findall(r"innerHTML|eval\(|<style|style=|\son\w+=\"|<script>", text)


def test_every_import_is_a_file() -> None:
    for path in FOLDER.glob("*.js"):
        for found in re.findall(r"from '\./(.+?)'", path.read_text()):
            assert (FOLDER / found).is_file(), f"{path.name}: {found}"
