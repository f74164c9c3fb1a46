from __future__ import annotations

from tests.browser.conftest import HEALTHY, SICK
from tests.browser.pages import visit

LINES = ".rows .line"


def shown(page):
    """Return the texts of the visible lines."""
    page.locator(LINES).first.wait_for()
    return page.locator(".line-text").all_inner_texts()


def test_the_console_shows_the_newest_lines(page, server, keys):
    """The console opens at the end: the last lines of all ranks, with errors marked, and few rows in the page."""
    visit(page, server, "console", keys[SICK])
    page.get_by_text("Connection closed by peer").first.wait_for()
    assert 10 < page.locator(LINES).count() < 120
    assert page.locator(".line.err").count() > 5
    assert "of 4 ranks" in page.locator(".console-note").inner_text()


def test_the_console_is_searched_and_filtered(page, server, keys):
    """Search, ranks and level select lines, and the address holds them."""
    visit(page, server, "console", keys[SICK], "q=keyerror")
    assert set(shown(page)) == {"KeyError: 'tokens'"}
    visit(page, server, "console", keys[SICK], "ranks=3&level=err")
    assert any("cannot make batch" in text for text in shown(page))
    assert {text.strip() for text in page.locator(".line .line-rank").all_inner_texts()} == {"3"}
    assert "of rank 3" in page.locator(".console-note").inner_text()
    page.get_by_label("Search the consoles").fill("/batch \\d+$/")
    page.wait_for_function("() => location.hash.includes('batch')")
    page.wait_for_function("() => document.querySelectorAll('.rows .line').length === 1")


def test_errors_and_what_was_searched_for_stand_out(page, server, keys):
    """Lines that look like errors are marked in both streams, and so is the text that a search found."""
    visit(page, server, "console", keys[SICK], "q=key&ranks=3&level=error")
    assert shown(page) == ["KeyError: 'tokens'"]
    assert page.locator(".line.error mark").all_inner_texts() == ["Key"]
    visit(page, server, "console", keys[SICK], "q=/rank 0|step 7 /")
    shown(page)
    assert page.locator(".line.error").count() == 0
    assert page.locator(".line-text").first.locator("mark").all_inner_texts() == ["step", " 7 "]


def test_hostile_lines_are_text(page, server, keys):
    """Markup and escape sequences in a line are shown, long lines are cut in the list, and colours become classes."""
    visit(page, server, "console", keys[SICK], "q=hacked")
    assert any("<script>" in text for text in shown(page))
    visit(page, server, "console", keys[SICK], "q=bold+green")
    shown(page)
    assert page.locator(".ansi-bold.ansi-green").first.inner_text() == "bold green"
    assert page.evaluate("() => window.hacked") is None
    visit(page, server, "console", keys[SICK], "q=xxxxxxxx")
    assert max(map(len, shown(page))) < 2100
    page.locator(LINES).first.click()
    assert len(page.locator(".console-full").inner_text()) == 16_384


def test_the_console_jumps_to_a_step_and_moves_by_keys(page, server, keys):
    """A step of the address opens the lines around it; arrow keys move through the lines and load older ones."""
    visit(page, server, "console", keys[SICK], "step=1000")
    page.locator(".line.chosen").wait_for()
    near = int(page.locator(".line.chosen .line-step").inner_text() or 0)
    assert 950 <= near <= 1050
    before = page.locator(".console-detail").inner_text()
    page.locator(".rows").focus()
    page.keyboard.press("ArrowUp")
    page.wait_for_function("(old) => document.querySelector('.console-detail').innerText !== old", arg=before)
    told = page.locator(".console-note").inner_text()
    page.keyboard.press("Home")
    page.wait_for_function("(old) => document.querySelector('.console-note').innerText !== old", arg=told)
    page.locator(".rows").focus()
    page.keyboard.press("Escape")
    page.locator(".console-detail").wait_for(state="hidden")
    assert page.locator(".line.chosen").count() == 0


def test_a_run_without_consoles_says_how_to_get_them(page, server, keys):
    """The empty console names the command that keeps what ranks print."""
    visit(page, server, "console", keys[HEALTHY])
    page.get_by_text("No console was kept").wait_for()
    assert "stepscope run" in page.locator(".nothing").inner_text()


def test_the_overview_names_the_first_error(page, server, keys):
    """The card about the end names the rank that began it and folds the errors of the others."""
    visit(page, server, "overview", keys[SICK])
    card = page.locator(".first-error")
    card.wait_for()
    assert "rank" in card.inner_text()
