"""What a program logged beside numbers, and what the badge of the alerts says."""

from __future__ import annotations

import numpy as np
import pytest

from bench.drawn_runs import Drawn, alert, write
from bench.served import Server
from tests.browser.pages import visit

STEPS = 100


@pytest.fixture(scope="module")
def noted(tmp_path_factory):
    """A server over a run with texts, a histogram and an alert that is a mere hint, and one with a warning."""
    scratch = tmp_path_factory.mktemp("noted")
    for name, severity in (("noted", "info"), ("warned", "warning")):
        run = Drawn(name, steps=STEPS, state="running", values={"loss": np.linspace(3, 1, STEPS)})
        texts = [{"kind": "log", "time": run.at(at), "step": at, "values": {"note": f"words {at}"}} for at in (5, 50)]
        edges, counts = [0.0, 0.5, 1.0], [3, 4]
        drawn = {"kind": "histogram", "name": "weights/fc1", "time": run.at(9), "step": 9, "edges": edges}
        run.events = [*texts, {**drawn, "counts": counts}, alert(run, 90, "hint", "firing", severity, text="a hint")]
        write(scratch / "runs" / "demo" / name, run)
    with Server(scratch / "runs", scratch) as server:
        yield server


def test_texts_are_readable(page, noted):
    """A text that was logged stands among the run's charts with its step, the newest first."""
    page.watched.origin = noted.origin
    visit(page, noted, "training", noted.keys()["noted"])
    card = page.locator(".text-card[data-text=note]")
    card.get_by_text("words 50").wait_for()
    assert card.locator("li").all_inner_texts()[0].startswith("step 50")
    visit(page, noted, "overview", noted.keys()["noted"])
    page.get_by_text("note: words 50").wait_for()


@pytest.mark.parametrize(("typed", "there"), [("^weights/.*", "[data-chart^=weights]"), ("note$", ".text-card")])
def test_the_search_finds_histograms_and_texts(page, noted, typed, there):
    """A regular expression finds whatever was logged, not metrics alone."""
    page.watched.origin = noted.origin
    visit(page, noted, "training", noted.keys()["noted"])
    page.get_by_label("Search metrics").fill(typed)
    page.locator(there).wait_for()
    page.locator(".chart[data-chart=loss]").wait_for(state="detached")
    assert page.locator(there).count() == 1


def test_the_badge_is_as_grave_as_the_worst_alert(page, noted):
    """A hint has no colour of danger, a warning has that of a warning."""
    page.watched.origin = noted.origin
    colours = {}
    for name in ("noted", "warned"):
        visit(page, noted, "overview", noted.keys()[name])
        badge = page.locator(".badge")
        badge.wait_for()
        colours[name] = badge.evaluate("(e) => getComputedStyle(e).backgroundColor")
    soft, warn = page.evaluate("""() => ['--soft', '--warn'].map((name) => { const one = document.createElement('i');
      one.style.background = `var(${name})`; document.body.append(one);
      const found = getComputedStyle(one).backgroundColor; one.remove(); return found })""")
    assert colours == {"noted": soft, "warned": warn}
