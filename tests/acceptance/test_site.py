"""The documentation site: built strictly, and nothing in it is loaded from anywhere else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.documents import DOCS, ROOT

_ELSEWHERE = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
#: A link that a reader may follow loads nothing by itself.
_FOLLOWED = ("a", "area")


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)),
        cwd=source,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


class _Loads(HTMLParser):
    """Collects the addresses that a browser fetches for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag in _FOLLOWED or attributes.get("rel") == "canonical":
            return
        for name in ("src", "href", "srcset", "data", "poster", "action"):
            if name in attributes:
                self.loads.append(attributes[name])
        self.loads += loads_of_style(attributes.get("style", ""))


def loads_of_style(css: str) -> list[str]:
    return re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""", css)


def loads_of_page(html: str) -> list[str]:
    parser = _Loads()
    parser.feed(html)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", html, re.DOTALL)
    return parser.loads + [load for style in styles for load in loads_of_style(style)]


def test_every_page_is_built(site: Path) -> None:
    wanted = {file.relative_to(DOCS).with_suffix(".html") for file in DOCS.rglob("*.md")}
    built = {file.relative_to(site) for file in site.rglob("*.html")}
    assert wanted <= built
    assert "resolved" in (site / "git-protocol.html").read_text("utf-8")
    assert "text|json|table" in (site / "commands.html").read_text("utf-8")


def test_nothing_of_the_site_is_loaded_from_elsewhere(site: Path) -> None:
    loads = {
        (file.name, load)
        for file in site.rglob("*.html")
        for load in loads_of_page(file.read_text("utf-8"))
    }
    for kind in ("*.css", "*.svg"):
        loads |= {
            (file.name, load)
            for file in site.rglob(kind)
            for load in loads_of_style(file.read_text("utf-8"))
        }
    assert loads
    assert {load for load in loads if _ELSEWHERE.match(load[1])} == set()
    # Material fetches a library for diagrams, and figures about a repository, when a page has them.
    pages = [file.read_text("utf-8") for file in site.rglob("*.html")]
    assert not any('class="mermaid"' in page or "data-md-component=source" in page
                   or 'data-md-component="source"' in page for page in pages)  # fmt: skip


def test_the_picture_of_a_sprint_is_complete_and_ends_with_the_result() -> None:
    picture = ElementTree.parse(DOCS / "sprint.svg").getroot()
    texts = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    words = " ".join(texts).replace("\xa0", " ")
    assert "caloron sprint" in words
    assert words.rindex("tasks are done") > words.rindex("InReview")


def test_every_loaded_file_exists(site: Path) -> None:
    for file in site.glob("*.html"):
        if file.name == "404.html":  # which is shown at any address, so it names its parts from /
            continue
        for load in loads_of_page(file.read_text("utf-8")):
            path = load.partition("#")[0].partition("?")[0]
            if path and not path.startswith("data:"):
                assert (file.parent / path).exists(), (file.name, load)


def test_broken_links_and_a_page_in_no_menu_fail_the_build(tmp_path: Path) -> None:
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for folder in ("docs", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    with (tmp_path / "docs" / "costs.md").open("a") as file:
        file.write("\n[gone](nowhere.md) and [gone](setup.md#no-such-heading)\n")
    (tmp_path / "docs" / "forgotten.md").write_text("# In no menu\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for problem in ("nowhere.md", "no-such-heading", "forgotten.md"):
        assert problem in done.stderr


def test_the_search_for_loaded_addresses_works() -> None:
    html = """<link rel=stylesheet href="https://x.example/a.css"><a href="https://fine.example">
    <script src="//x.example/b.js"></script><p style="background: url('https://x.example/c.png')">
    <style>@import "https://x.example/d.css";</style><link rel=canonical href="https://fine.example">"""
    loads = [load for load in loads_of_page(html) if _ELSEWHERE.match(load)]
    assert [load.rpartition("/")[2] for load in loads] == ["a.css", "b.js", "c.png", "d.css"]
