from __future__ import annotations

import pytest

from bench.drawn_runs import trained, write
from bench.served import Server, Trainer
from tests.browser.pages import chart, visit
from tests.browser.watched import watched_page


@pytest.fixture
def live(tmp_path, monkeypatch):
    """A server and a training that goes on."""
    monkeypatch.setenv("STEPSCOPE_RUNTIME_DIR", str(tmp_path / "runtime"))
    root = tmp_path / "runs"
    root.mkdir()
    with Server(root, tmp_path) as server, Trainer(root, 40, 20.0) as trainer:
        server.trainer, server.root = trainer, root
        yield server


@pytest.fixture
def follower(context, live):
    """A page of that server that must not complain."""
    with watched_page(context, live.origin) as page:
        yield page


LOADED = "() => performance.timeOrigin"
"""When the page was loaded, as the browser says."""


@pytest.mark.promise("S1-012", "S1-049", "S0-081")
def test_new_values_reach_the_chart(follower, live):
    """While a training logs, its charts are drawn again and again, and only those in sight."""
    visit(follower, live, "training", live.key("live"))
    clock = chart(follower, "clock")
    clock.scroll_into_view_if_needed()
    before = int(clock.get_attribute("data-drawn"))
    follower.wait_for_function("([e, n]) => Number(e.dataset.drawn) > n + 3", arg=[clock.element_handle(), before])
    follower.evaluate("scrollTo(0, 0)")
    unseen = follower.evaluate("""() => [...document.querySelectorAll('.chart')].filter((chart) =>
      chart.getBoundingClientRect().top > innerHeight + 600 && Number(chart.dataset.drawn) > 8).length""")
    assert unseen == 0


def test_the_end_of_a_run_is_shown(follower, live):
    """When the training ends, the page says so without a reload."""
    visit(follower, live, "overview", live.key("live"))
    follower.get_by_text("running").first.wait_for()
    loaded = follower.evaluate(LOADED)
    live.trainer.stop()
    follower.get_by_text("finished").first.wait_for()
    assert follower.evaluate(LOADED) == loaded


def test_a_server_that_is_gone_is_said_so_and_found_again(follower, live, tmp_path):
    """When the server stops, the page keeps what it has and says that nobody answers."""
    follower.watched.allow("ERR_CONNECTION_REFUSED", "Failed to load resource", "ERR_")
    visit(follower, live, "training", live.key("live"))
    live.stop()
    follower.get_by_text("does not respond").first.wait_for()
    assert follower.locator(".chart[data-state=drawn]").count() > 0


def test_a_new_run_appears_in_the_list(follower, live):
    """The list of runs grows by itself."""
    visit(follower, live)
    loaded = follower.evaluate(LOADED)
    write(live.root / "other" / "another", trained("another run", 3, 50))
    follower.get_by_text("another run", exact=True).first.wait_for()
    assert follower.evaluate(LOADED) == loaded


def test_a_hidden_page_asks_for_nothing(follower, live):
    """While the page is hidden it does not poll; when it is shown again it goes on."""
    visit(follower, live, "training", live.key("live"))
    hide = """(state) => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => state});
      Object.defineProperty(document, 'visibilityState', {configurable: true, get: () => state ? 'hidden' : 'visible'});
      document.dispatchEvent(new Event('visibilitychange')) }"""
    follower.evaluate(hide, True)
    asked = []
    follower.on("request", lambda request: asked.append(request.url))
    for _ in range(30):  # what was asked before is still on its way
        asked.clear()
        follower.wait_for_timeout(1500)
        if not asked:
            break
    assert asked == []
    with follower.expect_request(lambda request: "/api/live" in request.url):
        follower.evaluate(hide, False)


def test_a_test_notification_is_ordered_from_the_page(follower, live):
    """On a run that goes on the page can order a test notification, and says that it was taken."""
    visit(follower, live, "alerts", live.key("live"))
    follower.get_by_role("button", name="Send a test notification").click()
    follower.locator(".alert-notice").wait_for()
    assert len(follower.locator(".alert-notice").inner_text()) > 10
