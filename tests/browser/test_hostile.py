from __future__ import annotations

import pytest

from bench.drawn_hostile import AWKWARD, MARK, PAYLOADS
from tests.browser.pages import VIEWS, settle, visit

HOSTILE = PAYLOADS[0]
SINKS = "img[src=x], iframe, base, [onerror], [onload], [onmouseover], a[href^=javascript], a[href^=data]"
"""What would be in the document if a payload had become markup."""


def unharmed(page):
    """Say whether no payload has run or become an element, an attribute or a link."""
    ran = page.evaluate(f"() => window.{MARK} ?? null")
    made = page.locator(SINKS).count()
    return (ran, made, page.evaluate("() => Object.prototype.hasOwnProperty.call(Object.prototype, 'hacked')")) == (
        None,
        0,
        False,
    )


@pytest.mark.parametrize("view", VIEWS)
def test_names_and_texts_stay_text(page, server, keys, view):
    """Rule S17: markup in names of runs, metrics, devices, in configuration, events or causes is shown, never run."""
    visit(page, server, view, keys[HOSTILE])
    assert unharmed(page)
    page.mouse.wheel(0, 20_000)
    settle(page, view)
    assert unharmed(page)


def test_the_list_of_runs_and_the_title(page, server, keys):
    """Rule S17: the list of runs and the tab's title show a hostile name as it is."""
    visit(page, server)
    page.get_by_text(HOSTILE, exact=True).first.wait_for()
    assert unharmed(page)
    visit(page, server, "overview", keys[HOSTILE])
    assert HOSTILE[:20] in page.title()


def test_tooltips_and_legends(page, server, keys):
    """Rule S17: the tooltip of a chart whose metric is markup shows it as text."""
    visit(page, server, "training", keys[HOSTILE])
    for element in page.locator(".chart[data-state=drawn] .u-over").all()[:6]:
        element.hover()
        assert unharmed(page)


def test_search_takes_markup_and_broken_patterns(page, server, keys):
    """Rule S17: what is typed into a search, and what a link carries, is text too."""
    for text in (PAYLOADS[0], "(a+)+$", "[", "*", AWKWARD[0]):
        visit(page, server, "training", keys[HOSTILE])
        page.locator("input[type=search]").first.fill(text)
        settle(page, "training")
        assert unharmed(page)
        page.reload()
        settle(page, "training")
        assert unharmed(page)


def test_compare_with_a_hostile_run(page, server, keys):
    """Rule S17: configuration, names and legends of a comparison are text."""
    from urllib.parse import urlencode

    query = urlencode([("run", keys[HOSTILE]), ("run", keys["gpt-small baseline"])])
    visit(page, server, "compare", "", query)
    assert unharmed(page)


@pytest.mark.parametrize(
    "hash_", ["#/run/%00/training", "#/run/..%2f..%2fetc/overview", "#/nowhere", "#/run/%E0%A4%A/x", "#/run/a/b/c?x=y"]
)
def test_a_broken_link_is_explained(page, server, keys, hash_):
    """A link to no run, or to no view, gives a sentence and a way back, not an empty page."""
    page.watched.allow("status of 4")
    page.goto(server.page(hash_))
    page.wait_for_function("() => document.querySelector('main')?.innerText.trim().length > 10")
    assert unharmed(page)
