from __future__ import annotations

import numpy as np
import pytest

from bench.drawn_runs import Drawn, write
from bench.served import Server
from tests.browser.pages import chart, settle, visit

STEPS, SPIKE = 100_000, 61_803
RANGES = (None, (0, 99_999), (50_000, 75_000), (61_000, 62_500), (61_790, 61_815))

SEEN = """(chart) => { const {min, max} = chart.chart.scales.x;
  return [...chart.lines[0].x].filter((x) => x >= min && x <= max) }"""
"""Where the points are that a chart shows."""


@pytest.fixture(scope="module")
def spiked(tmp_path_factory):
    """A server over a run of 100 000 steps with one point that stands out."""
    scratch = tmp_path_factory.mktemp("spiked")
    run = Drawn("spiked", steps=STEPS)
    run.values["loss"] = np.random.default_rng(1).normal(1, 0.01, STEPS)
    run.values["loss"][SPIKE] = 50.0
    write(scratch / "runs" / "p" / "spiked", run)
    with Server(scratch / "runs", scratch) as server:
        yield server


@pytest.mark.parametrize("range_", RANGES)
def test_a_single_spike_is_visible_at_every_zoom(page, spiked, range_):
    """One point of a hundred thousand is on the canvas, whatever part of the run is shown."""
    page.watched.origin = spiked.origin
    query = "" if range_ is None else f"zoom=step:{range_[0]}:{range_[1]}"
    visit(page, spiked, "training", spiked.keys()["spiked"], query)
    loss = chart(page, "loss")
    page.wait_for_function("(e) => e.dataset.state === 'drawn' && e.chart", arg=loss.element_handle())
    settle(page, "training")
    page.wait_for_function("(e) => e.reach[1] >= 50", arg=loss.element_handle())
    assert _inked(page, loss)


@pytest.mark.parametrize("view", ["training", "system"])
def test_a_link_with_a_zoom_shows_every_step_of_it(page, spiked, view):
    """A link to twenty steps of a long run opens with those steps, one by one, on an axis of steps and of time."""
    page.watched.origin = spiked.origin
    visit(page, spiked, view, spiked.keys()["spiked"], "zoom=step:470:490")
    loss = chart(page, "loss")
    page.wait_for_function(f"(e) => e.chart && ({SEEN})(e).length >= 20", arg=loss.element_handle())
    assert len(loss.evaluate(SEEN)) <= 21
    if view == "training":
        assert loss.evaluate(SEEN) == list(range(470, 491))
    assert "zoom=" in page.url


def _inked(page, loss):
    """Say whether something is drawn near the top of the plot, where only the spike can be."""
    return page.evaluate(
        """(element) => { const {chart, reach} = element, ratio = devicePixelRatio;
          const at = (value) => chart.valToPos((value - reach[0]) / (reach[1] - reach[0]), 'y', true);
          const top = at(50), low = at(40);
          const {left, width} = chart.bbox;
          const pixels = chart.ctx.getImageData(left, Math.max(0, top - 2), width, Math.max(1, low - top)).data;
          const seen = new Map();
          for (let at = 0; at < pixels.length; at += 4) {
            const key = pixels.slice(at, at + 4).join(); seen.set(key, (seen.get(key) ?? 0) + 1) }
          const [, most] = [...seen].sort((a, b) => b[1] - a[1])[0];
          return pixels.length / 4 - most > 10 * ratio }""",
        loss.element_handle(),
    )
