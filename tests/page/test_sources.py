"""The page's source and what is built from it keep the rules that its policy and its readers rely on."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

import page

ROOT = Path(page.__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "web" / "src").rglob("*.ts"))
BUILT = ROOT / page.STATIC
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc"
    r"|\beval\(|new Function\(|setAttribute\(\s*[\"'](?:style|on\w+)[\"']"
)
MOST_BYTES = 150_000


@pytest.fixture(scope="module")
def built() -> list[Path]:
    """Return the files of the built page; build it if need be and possible."""
    if not page.is_fresh(ROOT):
        try:
            page.build(ROOT)
        except page.PageError as error:
            pytest.skip(f"the page cannot be built here: {error}")
    return [path for path in BUILT.rglob("*") if path.is_file()]


def test_no_data_is_ever_parsed_as_markup():
    """Rule S17: no source of the page has a sink that parses text as markup or code."""
    assert SOURCES
    found = [f"{path.name}: {hit}" for path in SOURCES for hit in SINKS.findall(path.read_text(encoding="utf-8"))]
    assert found == []


def test_nothing_is_inline_and_nothing_comes_from_elsewhere(built):
    """Rule S16: the built document has no inline script or style, and no file of it names another host."""
    document = (BUILT / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)", document)
    assert not re.search(r"<style|\sstyle=|\son\w+=", document)
    hosts = {
        host
        for path in built
        if path.suffix in {".js", ".css", ".html"}
        for host in re.findall(r"https?://([\w.-]+)", path.read_text(encoding="utf-8"))
    }
    assert hosts <= {"www.w3.org"}  # the name of SVG, which nobody fetches


def test_the_page_is_light(built):
    """All that a browser loads for the page is at most 150 kB compressed."""
    own = [path for path in built if path.parent in {BUILT, BUILT / "assets"}]  # the report's bundle is not the page's
    loaded = [path for path in own if path.suffix in {".html", ".js", ".css"} or path.name == "icon.svg"]
    assert sum(len(gzip.compress(path.read_bytes(), 6)) for path in loaded) <= MOST_BYTES


def test_every_icon_that_the_page_asks_for_is_there(built):
    """The icons that show a run's state are files of the page."""
    asked = re.findall(r'"(icon(?:-\w+)?)"', (ROOT / "web/src/main.ts").read_text(encoding="utf-8"))
    assert len(asked) >= 5
    assert {f"{name}.svg" for name in asked} <= {path.name for path in built}
