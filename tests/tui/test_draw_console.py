from __future__ import annotations

import pytest

from stepscope.store.console import ConsoleAnswer
from stepscope.tui.draw_console import NONE, coloured, wrapped
from stepscope.tui.frame import ViewOptions, length
from stepscope.tui.screen import draw
from stepscope.views.terminal import TerminalScene
from stepscope.views.terminal_console import TerminalConsole
from tests.tui.scenes import printed, run_scene


def shown(scene, width=80, height=24, **options):
    frame = draw(scene, ViewOptions(view="console", **options), width, height)
    return ["".join(text for text, _ in line) for line in frame.lines]


def of_lines(*lines):
    scene = TerminalScene("run", is_run=True)
    scene.console.take(ConsoleAnswer(list(lines), "", 0, []))
    return scene


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("plain", [("plain", "")]),
        ("\x1b[31mred\x1b[0m not", [("red", "red"), (" not", "")]),
        ("\x1b[1;92mok\x1b[22;39m.", [("ok", "bold bright_green"), (".", "")]),
        ("\x1b[38;5;208morange\x1b[38;2;1;2;31mtrue", [("orange", ""), ("true", "")]),
        ("\x1b[;m\x1b[999m\x1b[38mx", [("x", "")]),
        ("<b>\u202e\x07", [("<b>\ufffd\ufffd", "")]),
    ],
)
def test_colours_of_a_line_become_styles(text, spans):
    """The sixteen colours, bold and dim count; whatever else acts on a terminal is replaced."""
    assert coloured(text) == spans


def test_long_lines_are_wrapped_and_very_long_ones_cut():
    """A line takes at most four rows, each as wide as there is room; the rest is left out with an ellipsis."""
    rows = list(wrapped([("abc", "x"), ("def", "y")], 4))
    assert rows == [[("abc", "x"), ("d", "y")], [("ef", "y")]]
    assert [length(row) for row in wrapped([("训练" * 5, "")], 7)] == [6, 6, 6, 2]
    text = shown(of_lines(printed("x" * 16_384)))
    assert sum("xxx" in row for row in text) == 4
    assert any("x…" in row for row in text)


def test_errors_are_marked():
    """A line that looks like an error has a bar and its colour, unless it brings its own."""
    frame = draw(run_scene(), ViewOptions(view="console"), 120, 36)
    bad = [line for line in frame.lines if ("▌", "bad") in line]
    assert len(bad) == 2
    assert all(any(style == "bad" and len(text) > 1 for text, style in line) for line in bad)


def test_the_last_line_is_the_newest_or_the_chosen_one():
    """Without a choice the newest line is at the bottom; scrolled back, new lines do not move it."""
    scene = of_lines(*[printed(f"line {at}", number=at) for at in range(100)])
    assert "line 99" in shown(scene)[-3]
    assert "line 49" in shown(scene, newest=50)[-3]
    scene.console.take(ConsoleAnswer([printed("later", number=100)], "", 0, []))
    assert "line 49" in shown(scene, newest=50)[-3]
    assert "51 newer lines" in shown(scene, newest=50)[2]
    assert "line 0" in "".join(shown(scene, newest=-5))


def test_an_empty_console_says_why():
    """A run without consoles names the command that keeps them; a rank without lines is named."""
    scene = TerminalScene("run", is_run=True)
    assert "reading" in "".join(shown(scene, 120))
    scene.console.take(ConsoleAnswer([], "", 0, []))
    assert NONE in "".join(shown(scene, 120))
    scene.console = TerminalConsole(7)
    scene.console.take(ConsoleAnswer([], "", 12, []))
    text = "".join(shown(scene, 120))
    assert "rank 7 has printed nothing" in text
    assert "12 lines not kept" in text
