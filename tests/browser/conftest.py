"""One browser and one server for all browser tests of a worker; a page of its own for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.chromium import DESKTOP, executable, launched
from bench.drawn_console import printed, write_console
from bench.drawn_hostile import write_hostile
from bench.drawn_machine import HOST
from bench.drawn_runs import START, Drawn, crowded, sick, trained, write
from bench.served import Server
from tests.browser.watched import watched_page

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 90_000
"""Milliseconds that anything on a page may take on a slow machine that others use too."""
HEALTHY, FASTER, SICK, MANY = "gpt-small baseline", "gpt-small lr 6e-4", "gpt-small fp16", "200 metrics"


def faster() -> Drawn:
    """Return a second healthy run to compare with: another learning rate, a lower loss."""
    run = trained(FASTER, 7)
    run.config["optimizer"]["learning_rate"] = 6e-4
    run.values["loss"] = run.values["loss"] * 0.95
    return run


def make_runs(root: Path) -> None:
    """Write the runs that the tests look at."""
    write(root / "demo" / "20261115-100000-heal", trained(HEALTHY))
    write(root / "demo" / "20261115-110000-fast", faster())
    ill = write(root / "demo" / "20261115-120000-sick", sick(SICK))
    write_console(ill, printed(START / 1e6, 0.25, 2000, 4, HOST, guilty=3))
    write(root / "demo" / "20261115-130000-many", crowded(MANY))
    write_hostile(root)


@pytest.fixture(scope="module")  # not longer: while it lives a loop runs in this thread, and others want their own
def browser():
    """The browser."""
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: make test installs it")
    if executable() is None:
        pytest.skip("needs a browser: make test installs one")
    with api.sync_playwright() as playwright:
        found = launched(playwright)
        yield found
        found.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server over a healthy, a faster, a sick, a crowded and a hostile run."""
    scratch = tmp_path_factory.mktemp("served")
    make_runs(scratch / "runs")
    found = Server(scratch / "runs", scratch)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def keys(server):
    """The key of each run of the server, by its name."""
    return server.keys()


@pytest.fixture
def context(browser):
    """A browser context of the test's own: no cookie or setting of another."""
    found = browser.new_context(viewport=DESKTOP, locale="en-GB", timezone_id="UTC", reduced_motion="reduce")
    found.set_default_timeout(PATIENCE)
    yield found
    found.close()


@pytest.fixture
def page(context, server):
    """A page that must not show a dialog, complain on the console, or ask anybody but its server."""
    with watched_page(context, server.origin) as found:
        yield found
