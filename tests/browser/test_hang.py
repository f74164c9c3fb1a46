"""A job that hangs, on the page: the rank that is the cause, what each source shows, and what to do."""

from __future__ import annotations

import pytest

from bench.served import Server
from tests.browser.pages import visit
from tests.browser.watched import watched_page
from tests.hung import AT, hung_fleet, micros, moves_again, verdict, write

CAUSE = 2
SAID = f"Rank {CAUSE} never entered all_reduce: it sleeps at data.py:41"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A server over a job of which all ranks wait for one, and its run."""
    scratch = tmp_path_factory.mktemp("hung")
    past = hung_fleet(scratch / "runs", cause=CAUSE)
    server = Server(scratch / "runs", scratch)
    yield server, past
    server.stop()


@pytest.fixture
def page(context, job):
    """A page that must not complain, and may ask this server only."""
    with watched_page(context, job[0].origin) as found:
        yield found


def test_the_alert_shows_the_evidence_of_each_source(page, job):
    """Above its other facts, which do not repeat it."""
    server, past = job
    said = {"alert": "hang-1", "rule": "hang", "state": "firing", "severity": "critical", "text": SAID, "labels": {}}
    facts = {"event": "hang_verdict", "cause": "rank 2", "sources": verdict(CAUSE)["evidence"]}
    place = {"kind": "alert", "time": micros(AT + 3), "rank": -1, "attempt": 0}
    write(past.path / "events", [{**place, **said, "remedy": "look", "evidence": facts}])
    visit(page, server, "alerts", server.key_of(past.id))
    page.wait_for_selector(".alert-detail .hang-evidence")
    assert f"rank {CAUSE} sleeps at data.py:41" in page.locator(".alert-detail .hang-evidence").inner_text()
    assert "sources" not in page.locator(".alert-facts").inner_text()


def test_ranks_and_overview_say_why_it_hangs_until_it_moves(page, job):
    """Sentence, evidence by source and remedy are at the top of both; the cause is the first row of the ranks."""
    server, past = job
    key = server.key_of(past.id)
    for view, card in (("overview", ".verdict"), ("ranks", ".hang-card")):
        visit(page, server, view, key)
        page.wait_for_selector(f"{card} .hang-evidence")
        assert SAID in page.locator(f"{card} h2").inner_text()
        assert page.locator(f"{card} .hang-evidence dt").all_inner_texts() == ["Steps", "Stacks"]
        assert f"rank {CAUSE} sleeps at data.py:41" in page.locator(f"{card} .hang-evidence").inner_text()
        assert "Look at the line" in page.locator(card).inner_text()
    assert page.locator(".rank-list tbody tr").first.get_attribute("data-rank") == str(CAUSE)
    write(past.path / "events", [moves_again()])  # the page is not told, for the watcher of this run is gone
    visit(page, server, "ranks", key)
    page.wait_for_selector(".rank-list tbody tr")
    assert page.locator(".hang-card").count() == 0
