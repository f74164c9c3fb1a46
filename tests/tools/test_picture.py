"""The terminal pictures of the docs come from a real run, and are drawn so that they look the same everywhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

import picture

WORDS = {
    "demo": ("finished", "data stall", "loss spike", "memory leak", "evaluation", "checkpoint", "dropped"),
    "terminal": ("running", "loss", "learning_rate", "samples/s", "machine", "alerts"),
    "diagnosis": ("verdict", "memory_leak", "loss_spike", "input_bound", "What changed"),
}
SCREEN = "\x1b[1mloss\x1b[0m  1\n\x1b[36m▁█⣀\x1b[39m<&\x1b[7m tab \x1b[0m"


@pytest.fixture(params=WORDS)
def name(request):
    """Return the name of a picture."""
    return request.param


@pytest.fixture
def content(name):
    """Return a picture of the documentation."""
    return (picture.PICTURES / f"{name}.svg").read_text(encoding="utf-8")


def test_picture_is_as_the_tool_wrote_it(content):
    """The picture in the documentation was not edited manually."""
    assert picture.is_untouched(content)
    assert not picture.is_untouched(content.replace("loss", "LOSS", 1))


def test_picture_stands_alone(content):
    """The picture is small, well-formed, and refers to nothing outside itself."""
    ET.fromstring(content)
    assert len(content.encode()) < 100_000
    assert re.findall(r"(?:href|src|url\(|@import|<script|<image)", content) == []


def test_picture_shows_the_run(name, content):
    """The picture shows the faults that were planted in the run, or what was made of them."""
    assert [word for word in WORDS[name] if word not in content] == []


def test_styles_are_read():
    """Colours, weight and reverse are those of the escape codes, and end where the codes end them."""
    first, second = picture.parse(SCREEN)
    assert first[0] == ("l", picture.Style(bold=True))
    assert first[-1] == ("1", picture.Style())
    assert second[0] == ("▁", picture.Style(picture.NORMAL[6]))
    assert second[-1] == (" ", picture.Style(reverse=True))


def test_shapes_are_drawn_and_text_is_set():
    """Blocks and dots become paths of their colour; text is escaped and exactly as wide as its columns."""
    drawn = picture.draw(picture.parse(SCREEN), 40, "a title")
    assert drawn.count("<path fill=") == 2
    assert f'textLength="{4 * picture.CELL_WIDTH:.1f}"' in drawn
    assert "&lt;&amp;</text>" in drawn
    assert not set("▁█⣀") & set(drawn)
