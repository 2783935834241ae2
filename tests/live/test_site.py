"""The built site: complete, linked, searchable, and without requests to other sites."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, hard_to_read, launched, opened

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build the site once."""
    out = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        import build

        build.build(out)
    yield out


def texts(site: Path) -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8") for path in site.glob("*.html")}


def test_every_markdown_page_is_in_the_menu(site: Path) -> None:
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= set(texts(site))


def test_nothing_comes_from_outside(site: Path) -> None:
    for name, text in texts(site).items():
        assert not re.search(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=.?(?:https?:)?//", text), name
    for file in (*site.glob("*.css"), *site.glob("*.js")):
        assert not re.search(r"url\(|@import|fetch\(", file.read_text(encoding="utf-8")), file.name


def test_every_link_leads_somewhere(site: Path) -> None:
    pages = texts(site)
    anchors = {name: set(re.findall(r' id="([^"]+)"', text)) for name, text in pages.items()}
    for name, text in pages.items():
        for file, anchor in re.findall(r'(?:href|src)="(?!https?:)([^"#]*)#?([^"]*)"', text):
            assert not file or (site / file).exists(), f"{name} links to {file}"
            if anchor:
                assert anchor in anchors[Path(file).stem if file else name], f"{name} links to {file}#{anchor}"


def test_the_reference_has_every_public_name(site: Path) -> None:
    import bilinq

    pages = texts(site)
    for name in bilinq.__all__:
        assert re.search(rf'<h3 id="{name.lower()}(-1)?">{name}</h3>', pages["reference"]), name
    assert '<h2 id="bilinq-serve">' in pages["commands"] and "--work-conserving" in pages["commands"]
    assert "POST /v1/jobs" in pages["http"] and "idle: Mapping" in pages["reference"]
    assert "submit(job_class: str" in pages["reference-client"] and "time limits" not in pages["reference-client"]
    assert "Assignment(job: Job, job_class: str" in re.sub(r"<[^>]*>", "", pages["reference"])


def test_an_anchor_occurs_once_on_a_page(site: Path) -> None:
    for name, text in texts(site).items():
        anchors = re.findall(r' id="([^"]+)"', text)
        assert len(anchors) == len(set(anchors)), name


def test_the_reference_refuses_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from site_builder import reference

    with pytest.raises(LookupError, match=r"bilinq has no public name 'nonsense'; correct GROUPS or MODULES"):
        reference.module_page("nonsense")
    monkeypatch.setitem(reference.GROUPS, "Errors", ("BadInputs",))
    with pytest.raises(LookupError, match=r"bilinq has no public name 'BadInputs'"):
        reference.package_page()


def test_markdown_becomes_html(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from site_builder.page import Page, render, search_index

    links = "[c](docs/design.md#d) [e](f/README.md) [g](README.md) ![](h/i.png) [j](https://k.org/l.md)"
    page = Page("m", f"# A `b`\n\nSee Eq. (3), `Eq. (4)`, {links}\n\n## N\n\n$o$ p\n\n$$ q \\tag{{5}} $$\n")
    body = render(page, {"Menu": [page]}).partition("<main")[2]
    assert page.title == "A b"
    assert '<a href="maths.html#eq3">(3)</a>, <code>Eq. (4)</code>' in body
    found = re.findall('(?:href|src)="([^"]*)"', body)
    assert found[1:] == ["design.html#d", "f.html", "index.html", "i.png", "https://k.org/l.md"]
    assert 'id="eq5">(5)</span><math' in body
    assert search_index([page]).endswith(',["m","n","A b","N","p"]];\n')


def test_docstrings_become_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from site_builder.reference import docstring_markdown

    text = "Add.\n\nParameters\n----------\nx, y : (I,) array\n    Numbers,\n    many.\n\nExamples\n--------\n>>> 1 + 1\n2\n"
    assert docstring_markdown(text) == (
        "Add.\n\n**Parameters**\n\n- `x, y` *((I,) array)* Numbers, many.\n\n**Examples**\n\n```pycon\n>>> 1 + 1\n2\n```"
    )


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium or Chrome on the path")
def test_a_reader_finds_things_with_the_keyboard(site: Path) -> None:
    with launched() as browser:
        page, trouble = opened(browser, (site / "index.html").as_uri(), viewport={"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.keyboard.press("/")
        page.keyboard.type("safe_gain")
        assert page.locator("#found li").count() > 1
        page.locator("#found a").first.click()
        assert "safe_gain" in page.locator("main").inner_text()
        page.keyboard.press("/")
        page.keyboard.type("retry")  # a heading that begins a word with it comes first
        assert "Retry failed jobs" in page.locator("#found a").first.inner_text()
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("zyzzyva")
        assert page.locator("#found").inner_text() == "Nothing found."
        page.keyboard.press("Escape")
        assert page.locator("#menu").is_visible()
        assert all(one.startswith(site.as_uri()) for one in trouble), trouble


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium or Chrome on the path")
def test_code_is_copied_with_a_button_and_sections_have_links(site: Path) -> None:
    """A block of code has a button and a file its name; what a program prints has neither."""
    with launched() as browser:
        page, trouble = opened(browser, (site / "tutorial-serve.html").as_uri(), viewport={"width": 390, "height": 800})
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator(".code > p").first.inner_text() == "service.toml"
        assert page.locator(".output").count() > 1 and page.locator(".output button").count() == 0
        page.locator(".code", has_text="python client.py").get_by_role("button").click()
        page.get_by_text("Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()").strip() == "python client.py"
        section = page.locator("h2", has_text="See it learn")
        section.locator(".anchor").click()
        assert page.evaluate("location.hash") == f"#{section.get_attribute('id')}"
        assert hard_to_read(page) == []
        assert all(one.startswith(site.as_uri()) for one in trouble), trouble
