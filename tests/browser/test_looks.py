from __future__ import annotations

import os
from urllib.parse import urlencode

import pytest

from bench.chromium import DESKTOP, PHONE
from tests.browser.conftest import FASTER, HEALTHY, PATIENCE, SICK
from tests.browser.looks import LOOKS, apart, shrunk
from tests.browser.pages import settle, visit

APART = 0.25
"""How far a page may be from its picture: other fonts stay below, a missing chart or a lost style does not."""
FINDING = {"kind": "data_stall", "severity": "critical", "text": "waiting for data takes 13 % of the time"}
FINDING |= {"remedy": "give the loader more workers", "evidence": {}, "confidence": 0.9, "cost_seconds": 48.0}
FINDING |= {"rank": None, "expected_gain": "13 % faster"}
VERDICT = {"run": "r", "primary": "data_stall", "summary": "data", "findings": [FINDING], "missing": [], "changes": []}
"""A verdict of the test's own: how the page looks must not depend on what a diagnosis says, or when."""
PAGES = {
    "runs": ("runs", None),
    "overview": ("overview", SICK),
    "training": ("training", HEALTHY),
    "system": ("system", SICK),
    "ledger": ("ledger", SICK),
    "alerts": ("alerts", SICK),
    "compare": ("compare", None),
    "export": ("export", HEALTHY),
}


def picture(browser, server, keys, name, size, scheme):
    """Return what a page looks like."""
    view, run = PAGES[name]
    query = urlencode([("run", keys[HEALTHY]), ("run", keys[FASTER])]) if view == "compare" else ""
    context = browser.new_context(
        viewport=size, color_scheme=scheme, locale="en-GB", timezone_id="UTC", reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.route("**/api/diagnosis*", lambda route: route.fulfill(json=VERDICT))
    visit(page, server, view, keys[run] if run else "", query)
    page.mouse.move(0, 0)
    page.wait_for_load_state("networkidle")  # the verdict comes after the charts
    settle(page, view)
    found = page.screenshot()
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    context.close()
    return found, wide


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_look_as_kept(browser, server, keys, name, size, scheme):
    """Each page looks as its kept picture, wide and light, narrow and dark, and never scrolls sideways.

    After a change that is meant, build the page (python tools/page.py freshen), run KEEP_LOOKS=1 pytest
    tests/browser/test_looks.py, and look at the new pictures.
    """
    found, wide = picture(browser, server, keys, name, size, scheme)
    assert wide <= size["width"]
    desk = browser.new_page()
    small = shrunk(desk, found)
    kept = LOOKS / f"{name}-{'desktop' if size == DESKTOP else 'phone'}-{scheme}.png"
    if os.environ.get("KEEP_LOOKS"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(small)
    told = apart(desk, small, kept.read_bytes())
    desk.close()
    assert told <= APART


def test_pictures_of_two_pages_are_told_apart(browser):
    """No page passes for another: the comparison sees a layout that has changed."""
    desk = browser.new_page()
    kept = sorted(LOOKS.glob("*-desktop-*.png"))
    for place, one in enumerate(kept):
        for other in kept[place + 1 :]:
            assert apart(desk, one.read_bytes(), other.read_bytes()) > APART, (one.name, other.name)
    desk.close()
