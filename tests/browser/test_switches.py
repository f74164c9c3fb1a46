"""Every switch of the charts, alone and with every other, over values that no axis expects."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from bench.drawn_runs import Drawn, write
from bench.served import Server
from tests.browser.pages import chart, settle, visit

STEPS = 1000
SWITCHES = ("Log", "Clip outliers", "Events", "Machine metrics", "Time", "Clock", "Smooth")
SLOWER = 20
"""How many times what opening the page takes a switch may take; one that hangs takes hundreds."""
TICKS = 40
WATCH = """() => { window.longest = 0; new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) longest = Math.max(longest, entry.duration) }).observe({type: 'longtask'}) }"""
TAKEN = "() => { const found = window.longest; window.longest = 0; return found }"
MOST = """() => Math.max(...[...document.querySelectorAll('.chart')].filter((one) => one.chart)
  .flatMap((one) => one.chart.axes.map((axis) => axis._splits?.length ?? 0)))"""


def odd() -> dict[str, np.ndarray]:
    """Return series of a thousand steps that are hard on an axis."""
    at, draw = np.arange(STEPS), np.random.default_rng(3)
    falling = 3 * np.exp(-at / 150) + 0.1 + draw.normal(0, 0.003, STEPS)
    falling[700] = 40
    diverged = np.exp(np.minimum(at, 900) / 8.0)
    diverged[950:] = np.inf
    return {
        "loss": falling,
        "diverged": diverged,
        "huge": 1e300 * (1 + at / STEPS),
        "farthest": np.where(at % 2, 1.7e308, -1.7e308),
        "tiny": 10.0 ** (-at / 4),
        "denormal": np.full(STEPS, 5e-324),
        "noise": 1 + at * 2.0**-52,
        "constant": np.full(STEPS, 7.0),
        "zero": np.zeros(STEPS),
        "negative": -1.0 - at,
        "around": np.where(at % 10, -5.0, 1e-12),
        "nan": np.full(STEPS, np.nan),
        "rare": np.where(at % 250 == 100, 1e19, 1e-19),
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server over a run with such series."""
    scratch = tmp_path_factory.mktemp("odd")
    write(scratch / "runs" / "p" / "odd", Drawn("odd", steps=STEPS, values=odd()))
    with Server(scratch / "runs", scratch) as server:
        yield server


def press(page, name):
    """Turn a switch; smoothing is the slider."""
    if name == "Smooth":
        page.get_by_label("Smoothing").press("End")
    else:
        page.get_by_role("button", name=name, exact=True).click()


def test_every_pair_of_switches_answers_at_once(page, served):
    """No switch, alone or with another, makes an axis of many ticks, hangs, or leaves a chart without an answer."""
    page.watched.origin = served.origin
    page.add_init_script(f"({WATCH})()")
    key = served.keys()["odd"]
    page.set_viewport_size({"width": 1440, "height": 1600})
    visit(page, served, "training", key)
    usual = max(50, page.evaluate(TAKEN))
    for pair in combinations(SWITCHES, 2):
        visit(page, served, "training", key)
        for name in pair:
            page.evaluate(TAKEN)
            press(page, name)
            settle(page, "training")
            assert page.evaluate(TAKEN) < SLOWER * usual, (pair, name)
        assert page.evaluate(MOST) <= TICKS, pair


def test_the_clipped_log_axis_shows_the_curve(page, served):
    """A loss that falls by a decade with one point far above is drawn between round values on a clipped log axis."""
    page.watched.origin = served.origin
    visit(page, served, "training", served.keys()["odd"], "log=*&clip=1")
    loss = chart(page, "loss")
    assert loss.get_attribute("data-state") == "drawn"
    low, high = loss.evaluate("(e) => e.reach")
    assert 0.05 < low < 0.1
    assert 3 < high < 100
