from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import picture

CONTENT = picture.PICTURE.read_text(encoding="utf-8")
FRAME = "\x1b[?25l\x1b[1mloss\x1b[0m 1\x1b[K\r\n\x1b[36m▁█\x1b[0m<&\x1b[K"


def test_picture_is_as_the_tool_wrote_it():
    """The picture in the documentation was not edited by hand."""
    assert picture.is_untouched(CONTENT)
    assert not picture.is_untouched(CONTENT.replace("loss", "LOSS", 1))


def test_picture_stands_alone():
    """The picture is small, well-formed, and refers to nothing outside itself."""
    ET.fromstring(CONTENT)
    assert len(CONTENT.encode()) < 60_000
    assert re.findall(r"(?:href|src|url\(|@import|<script|<image)", CONTENT) == []


def test_picture_shows_the_demo():
    """The picture shows a training that runs, with everything planted in it."""
    for word in ("running", "data stall", "loss spike", "memory leak", "evaluation", "checkpoint", "dropped"):
        assert word in CONTENT


def test_terminal_keeps_what_is_drawn_over():
    """A second frame over the first replaces its characters and their styles."""
    screen = picture.Screen()
    screen.feed(FRAME)
    screen.feed("\x1b[1A\r\x1b[31mLOSS\x1b[0m\x1b[K")
    assert screen.text().splitlines()[:2] == ["LOSS", "▁█<&"]
    assert screen.cells[0][0] == ("L", picture.Style(picture.COLOURS[31]))


def test_terminal_scrolls():
    """A line feed on the last row moves everything up by one."""
    screen = picture.Screen(rows=2)
    screen.feed("a\r\nb\r\nc")
    assert screen.text() == "b\nc"


def test_blocks_are_drawn_and_text_is_set():
    """Blocks become paths of their colour; text is escaped and as wide as its columns."""
    screen = picture.Screen()
    screen.feed(FRAME)
    drawn = picture.picture(screen)
    assert drawn.count("<path fill=") == 1
    assert f'textLength="{4 * picture.WIDE:.1f}"' in drawn
    assert "&lt;&amp;</text>" in drawn
    assert "▁" not in drawn
