"""Runs side by side: what is told first, every run's value, and a run that diverged."""

from __future__ import annotations

from urllib.parse import urlencode

import numpy as np
import pytest

from bench.chromium import PHONE
from bench.drawn_runs import trained, write
from bench.served import Server
from tests.browser.pages import chart, settle, visit

NAMES = ("steady", "better", "diverged")


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A server over two healthy runs and one whose loss leaves all bounds."""
    scratch = tmp_path_factory.mktemp("three")
    for seed, name in enumerate(NAMES):
        run = trained(name, seed, 600)
        if name == "diverged":
            run.values["loss"] = run.values["loss"] * np.exp(np.clip(np.arange(600) - 300, 0, 150) / 4.0)
        write(scratch / "runs" / "demo" / name, run)
    with Server(scratch / "runs", scratch) as server:
        yield server


def query(three, **more):
    """Return the query of a comparison of all three."""
    keys = three.keys()
    return urlencode([*(("run", keys[name]) for name in NAMES), *more.items()])


def test_quality_comes_before_time(page, three):
    """Charts and numbers say first how good the runs are, then how fast; every chart has the value of every run."""
    page.watched.origin = three.origin
    visit(page, three, "compare", "", query(three))
    page.locator(".compare-numbers tbody tr").first.wait_for()
    assert page.locator(".compare-numbers tbody th").first.inner_text().startswith("loss at step")
    titles = page.locator(".compare-part > h2").all_inner_texts()
    assert titles == ["Quality", "Time"]
    first = page.locator(".compare-part").first.locator(".chart").first
    first.scroll_into_view_if_needed()
    assert first.get_attribute("data-chart") == "loss"
    page.wait_for_function("(e) => e.querySelectorAll('.chart-values b').length === 3", arg=first.element_handle())


def test_a_run_that_diverged_does_not_flatten_the_others(page, three):
    """The axis is that of the healthy runs, the chart says what it leaves out, and the switch brings it back."""
    page.watched.origin = three.origin
    visit(page, three, "compare", "", query(three))
    loss = chart(page, "loss")
    loss.scroll_into_view_if_needed()
    page.wait_for_function("(e) => e.dataset.state === 'drawn' && e.reach", arg=loss.element_handle())
    assert loss.evaluate("(e) => e.reach[1]") < 40
    assert "above" in loss.inner_text()
    page.get_by_role("button", name="Clip outliers").click()
    page.wait_for_function("(e) => e.reach && e.reach[1] > 1e6", arg=loss.element_handle())
    assert "clip=0" in page.url


def test_the_switches_of_the_charts_are_in_the_address(page, three):
    """Smoothing and a log axis work as in the training's charts, and a link keeps them."""
    page.watched.origin = three.origin
    visit(page, three, "compare", "", query(three))
    page.get_by_role("button", name="Log", exact=True).click()
    page.get_by_label("Smoothing").press("End")
    page.wait_for_function("() => location.hash.includes('log=') && location.hash.includes('smooth=')")
    page.reload()
    settle(page, "compare")
    assert page.get_by_role("button", name="Log", exact=True).get_attribute("aria-pressed") == "true"


def test_on_a_phone_nothing_is_cut_off(page, three):
    """The numbers of all runs stand one below the other: nothing has to be scrolled sideways."""
    page.watched.origin = three.origin
    page.set_viewport_size(PHONE)
    visit(page, three, "compare", "", query(three))
    page.locator(".compare-numbers tbody tr").first.wait_for()
    assert page.locator(".compare-numbers").evaluate("(e) => e.getBoundingClientRect().right <= innerWidth")
    assert page.locator(".compare-numbers tbody tr").first.locator(".compare-whose:visible").count() == 3


def test_ticks_are_still_there_after_going_back(page, three):
    """Runs that were ticked to be compared are ticked when one comes back to the list."""
    page.watched.origin = three.origin
    visit(page, three)
    for name in NAMES[:2]:
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare 2 runs").click()
    settle(page, "compare")
    page.go_back()
    settle(page, "runs")
    page.wait_for_function("() => document.querySelectorAll('input[type=checkbox]:checked').length === 2")
    assert page.get_by_label("Compare steady").is_checked()
