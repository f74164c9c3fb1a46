from __future__ import annotations

from stepscope.store.console import ConsoleAnswer
from stepscope.views.terminal_console import FIRST, MOST, TerminalConsole
from tests.tui.scenes import printed


def answer(lines, cursor="next", dropped=0):
    return ConsoleAnswer(lines, cursor, dropped, [])


def test_the_newest_lines_come_first_then_what_follows():
    """The first query is for the newest lines of the rank, the next for what was printed since."""
    console = TerminalConsole(3)
    assert (console.query().last, console.query().ranks) == (FIRST, (3,))
    console.take(answer([printed("a")], dropped=7))
    assert (console.query().after, console.query().last, console.lost) == ("next", None, 7)
    assert console.is_of(3)
    assert not console.is_of(None)


def test_a_line_that_grows_is_one_line():
    """A progress bar that is drawn on replaces its earlier state, wherever it stands."""
    console = TerminalConsole()
    console.take(answer([printed("10 %", number=1, is_open=True), printed("other", 1, 1)]))
    console.take(answer([printed("100 %", number=1)]))
    assert [line.text for line in console.lines] == ["100 %", "other"]


def test_old_lines_are_let_go_and_numbers_stay():
    """At most so many lines are kept; the number of a line does not change when older ones go."""
    console = TerminalConsole()
    console.take(answer([printed(str(at), number=at) for at in range(MOST)]))
    console.take(answer([printed("new", number=MOST)]))
    assert (console.first, console.end, len(console.lines)) == (1, MOST + 1, MOST)
    console.take(answer([printed("newer", number=MOST)]))
    assert console.lines[MOST - 1].text == "newer"
    assert console.end == MOST + 1
