"""The axis of the charts: by step, by time since the start, by the clock; of one run, of attempts, of several runs."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from bench.drawn_runs import START, trained, write
from bench.served import Server
from tests.browser.pages import chart, settle, visit

LATER = 7200
"""Seconds by which the second run began after the first."""
RANGE = "(e) => [e.chart.scales.x.min, e.chart.scales.x.max]"


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """A server over two runs of the same course, one two hours after the other."""
    scratch = tmp_path_factory.mktemp("apart")
    for name, later in (("early", 0), ("late", LATER)):
        run = trained(name, 1, 400)
        run.start = START + later * 1_000_000
        write(scratch / "runs" / "demo" / name, run)
    with Server(scratch / "runs", scratch) as server:
        yield server


def shown(page, name="loss"):
    """Return the chart of a metric once it is drawn, and from where to where its axis reaches."""
    found = chart(page, name)
    found.scroll_into_view_if_needed()
    page.wait_for_function("(e) => e.dataset.state === 'drawn' && e.chart", arg=found.element_handle())
    return found, found.evaluate(RANGE)


def compared(apart, x):
    """Return the query of a comparison of both by an axis."""
    keys = apart.keys()
    return urlencode([("run", keys["early"]), ("run", keys["late"]), *([("x", x)] if x else [])])


def test_compare_by_step_time_and_clock(page, apart):
    """By time each run begins at its own start, so that both lie over each other; by the clock hours are between."""
    page.watched.origin = apart.origin
    visit(page, apart, "compare", "", compared(apart, ""))
    _, (first, last) = shown(page)
    assert 0 <= first <= 2  # a bucket is at its last step
    assert last == 399
    page.get_by_role("button", name="Time", exact=True).click()
    settle(page, "compare")
    loss, (first, last) = shown(page)
    assert "x=time" in page.url
    assert 0 <= first < 1
    assert 90 < last < 110
    loss.locator(".u-over").hover()
    page.locator(".tip", has_text="early").wait_for()
    assert "late" in page.locator(".tip").inner_text()
    page.mouse.move(0, 0)
    page.get_by_role("button", name="Clock", exact=True).click()
    settle(page, "compare")
    _, (first, last) = shown(page)
    assert first >= START / 1e6
    assert last - first > LATER


def test_compare_zoom_by_time_is_each_runs_own(page, apart):
    """A zoom by elapsed time is in the address, and both runs have points in it."""
    page.watched.origin = apart.origin
    visit(page, apart, "compare", "", f"{compared(apart, 'time')}&zoom=time:20:40")
    loss, (first, last) = shown(page)
    assert (first, last) == (20, 40)
    loss.locator(".u-over").hover()
    page.locator(".tip", has_text="early").wait_for()
    assert "late" in page.locator(".tip").inner_text()
    page.get_by_title("Show everything").click()
    page.wait_for_function("() => !location.hash.includes('zoom=')")


@pytest.mark.parametrize(("x", "low", "high"), [("step", 0, 399), ("time", START / 1e6, START / 1e6 + 100)])
def test_training_by_step_and_time(page, apart, x, low, high):
    """The charts of a run reach from its first to its last step, or from its start to its end."""
    page.watched.origin = apart.origin
    visit(page, apart, "training", apart.keys()["early"], f"x={x}")
    _, (first, last) = shown(page)
    assert first == pytest.approx(low, abs=2)
    assert last == pytest.approx(high, abs=1)


def test_a_run_that_has_ended_is_not_stale(page, apart):
    """How long ago the last data came is told only while more should come; the end of a run is its end."""
    page.watched.origin = apart.origin
    visit(page, apart, "overview", apart.keys()["early"])
    pulse = page.locator(".pulse")
    page.wait_for_function("(e) => e.textContent.includes('ended')", arg=pulse.element_handle())
    assert "last data" not in page.locator("body").inner_text()


def test_compare_without_runs_says_what_to_do(page, apart):
    """The page of a comparison that has not been chosen yet says so."""
    page.watched.origin = apart.origin
    visit(page, apart, "compare")
    text = page.get_by_text("Choose two or more runs")
    text.wait_for()
    assert text.is_visible()


def test_a_run_that_is_not_there_is_no_lost_connection(page, apart):
    """An address that leads to no run says that, and leads back."""
    page.watched.origin = apart.origin
    page.watched.allow("404")
    page.goto("about:blank")
    page.goto(apart.page("#/run/demo%2Fnone/overview"))
    page.get_by_role("heading", name="No such run").wait_for()
    assert "connected" not in page.locator("header").first.inner_text()
    page.get_by_role("link", name="All runs").click()
    page.get_by_text("early", exact=True).first.wait_for()
