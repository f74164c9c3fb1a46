"""The page in a headless Chromium: opening, zooming, following live, its weight, and fifty of them at once.

Browser CPU is that of all its processes. A chart counts as drawn when it says so (`data-state="drawn"`), which it does
after its lines are on the canvas.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from bench.browser_load import Load
from bench.chromium import DESKTOP, executable, launched
from bench.drawn_runs import ten_million
from bench.figure import Figure, Options
from bench.page_growth import Reading, Watch, growth
from bench.page_script import CARDS, DRAWN, FOLLOW, STAMP, TOPS, ZOOM
from bench.served import Server, Trainer
from bench.synthetic import long_run
from bench.viewers import QUICK, START_SECONDS, TensorBoard
from stepscope.sources.opened_run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.reader import Past

LIVE = ("live_browser", "live_server", "live_growth", "live_counts", "live_server_memory")
CHARTS = 100
PAGES = 50
SMALL = {"width": 480, "height": 320}
"""Window of each of many pages: one chart is in sight."""
ZOOMS = ((40_000, 140_000), (80_000, 100_000), (88_000, 89_000), (20_000, 20_200), (0, 199_999))
"""Steps that are zoomed into, one range after another."""
RATE = 10.0
"""Steps a second of the training that is followed."""
GROWTH, COUNTS, SERVER = 0.5, 10.0, 200.0
"""What a live page may grow by in ten minutes, in MiB and in nodes; and what its server may take, in MiB."""


def measure(options: Options) -> list[Figure]:
    """Return the figures of the page; without a value where there is no browser."""
    missing = _missing()
    if missing:
        keys = ("weight", "open", "zoom", "zoom_spikes", "open_tensorboard", *LIVE, "pixel", "fifty", "fifty_trainer")
        return [Figure(f"page_{key}", "the page", None, beside=missing) for key in keys]
    from playwright.sync_api import sync_playwright

    root = options.scratch / "runs"
    with sync_playwright() as playwright:
        browser = launched(playwright, "--js-flags=--expose-gc")
        try:
            parts = [part for part in (_long, _live, _fifty) if options.only in part.__name__]
            return [figure for part in parts for figure in part(browser, root / part.__name__, options)]
        finally:
            browser.close()


def _missing() -> str:
    from importlib.util import find_spec

    if find_spec("playwright") is None:
        return "playwright is not installed"
    return "" if executable() else "a Chromium is not installed"


def _page(browser: Any) -> Any:
    context = browser.new_context(viewport=DESKTOP)
    context.set_default_timeout(60_000)
    return context.new_page()


def _address(server: Server, key: str, query: str = "") -> str:
    return server.page(f"#/run/{quote(key, safe='')}/training{query}")


def _long(browser: Any, root: Path, options: Options) -> list[Figure]:
    """Open and zoom a run of 10 M points in 50 series."""
    past = open_run(ten_million(root / "big" / "long"))
    cold, warm, weight, zooms, spikes = [], [], 0, [], 0
    for _ in range(1 if options.quick else 5):
        with Server(root, options.scratch) as server:
            key = server.keys()["long"]
            page = _page(browser)
            weight = _weigh(page, server)
            cold.append(_opening(page, _address(server, key)))
            page.goto("about:blank")
            warm.append(_opening(page, _address(server, key)))
            steps, missed = _zooming(page, past, 2 if options.quick else len(ZOOMS))
            zooms, spikes = zooms + steps, spikes + missed
            page.context.close()
    beside = f"{statistics.median(warm):.2f} s when the server has read it before; all charts in the window"
    return [
        Figure("page_weight", "page weight, transferred", weight / 1000, "kB", 150, "HTML, script, style, icon"),
        Figure("page_open", "10 M points in 50 series: first charts drawn", statistics.median(cold), "s", 1.5, beside),
        Figure("page_zoom", "  zoom to any range of it", statistics.median(zooms) * 1e3, "ms", 200, _spread(zooms)),
        Figure("page_zoom_spikes", "  planted spikes not visible at some zoom", float(spikes), "", 0.0),
        _beside(browser, root.parent / "beside", options),
    ]


def _beside(browser: Any, root: Path, options: Options) -> Figure:
    """Open a smaller run in TensorBoard and in ours, from the start of the program to the first charts."""
    steps = 20_000
    key, what = "page_open_tensorboard", f"  TensorBoard, {50 * steps / 1e6:g} M points in 50 series: start to charts"
    missing = QUICK if options.quick else TensorBoard.missing()
    if missing:
        return Figure(key, what, None, beside=missing)
    long_run(root / "runs" / "big" / "long", 50, steps, 4)
    began = time.monotonic()
    with Server(root / "runs", options.scratch) as server:
        page = _page(browser)
        _opening(page, _address(server, server.key("long")))
        own = time.monotonic() - began
        page.context.close()
    peer = TensorBoard(root / "peer")
    peer.folder.mkdir()
    peer.write(root / "runs")
    with peer:
        listed = peer.until(1)
        page = _page(browser)
        page.goto(peer.address(), wait_until="commit")
        page.wait_for_function(CARDS, polling=10, timeout=START_SECONDS * 1000)
        seconds = time.monotonic() - peer.began
        page.context.close()
    told = f"ours {own:.1f} s; it answered after {listed:.1f} s, and draws 1000 points of each series"
    return Figure(key, what, seconds, "s", None, told)


def _spread(seconds: list[float]) -> str:
    return f"{min(seconds) * 1e3:.0f} to {max(seconds) * 1e3:.0f} ms over {len(seconds)} zooms"


def _weigh(page: Any, server: Server) -> int:
    """Return the bytes that came over the wire for the page itself, without data."""
    client = page.context.new_cdp_session(page)
    sizes: dict[str, int] = {}
    addresses: dict[str, str] = {}
    client.on(
        "Network.responseReceived", lambda event: addresses.update({event["requestId"]: event["response"]["url"]})
    )
    client.on(
        "Network.loadingFinished", lambda event: sizes.update({event["requestId"]: int(event["encodedDataLength"])})
    )
    client.send("Network.enable")
    page.goto(server.page(), wait_until="load")
    page.wait_for_timeout(300)
    client.detach()
    return sum(size for request, size in sizes.items() if "/api/" not in addresses.get(request, "/api/"))


def _opening(page: Any, address: str) -> float:
    started = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_function(DRAWN, polling=10)
    return time.perf_counter() - started


def _zooming(page: Any, past: Past, zooms: int) -> tuple[list[float], int]:
    """Zoom all charts to ranges of the run; return the seconds of each, and how many planted spikes are not drawn."""
    seconds, missed = [], 0
    page.evaluate(STAMP)
    for first, last in ZOOMS[:zooms]:
        told = page.evaluate(ZOOM, [first, last])
        seconds.append(told["seconds"])
        missed += sum(top < _highest(past, name, first, last) for name, top in page.evaluate(TOPS))
    return seconds, missed


def _highest(past: Past, name: str, first: int, last: int) -> float:
    """Return the highest of all points of a series between two steps."""
    value = past.series(name, step_range=(first, last)).value
    return float(value[np.isfinite(value)].max())


def _live(browser: Any, root: Path, options: Options) -> list[Figure]:
    """Follow a run of 100 charts, and the time from log() to the pixel."""
    seconds, longer = (3.0, 4.0) if options.quick else (90.0, 600.0 if options.huge else 120.0)
    root.mkdir(parents=True)
    with Server(root, options.scratch) as server, Trainer(root, CHARTS, RATE):
        key = server.key("live")
        page = _page(browser)
        page.goto(_address(server, key))
        page.wait_for_function(DRAWN, polling=50)
        page.evaluate(FOLLOW, "clock")
        load = Load(server.process.pid)
        time.sleep(seconds)
        browser_ratio, server_ratio = load.ratios()
        late = sorted(_latencies(page.evaluate("window.followed()")))
        drawn = page.evaluate("document.querySelectorAll('.chart[data-state=drawn]').length")
        charts = page.evaluate("document.querySelectorAll('.chart').length")
        with Watch(page, server.process.pid) as watch:  # after the load: a forced collection costs time
            watch.follow(longer, longer / 30)
        page.context.close()
    beside = f"{charts} charts in the document, {drawn} of them drawn; over {seconds:.0f} s"
    middle = statistics.median(late) if late else None
    tail = f"95 of 100 within {late[int(len(late) * 0.95)]:.2f} s, {len(late)} calls" if late else "no call was seen"
    return [
        Figure("page_live_browser", "100 charts live at 2 Hz: browser", 100 * browser_ratio, "% core", 35, beside),
        Figure("page_live_server", "  server", 100 * server_ratio, "% core", 10),
        *_growing(watch.readings, whole=options.huge),
        Figure("page_pixel", "log() in the trainer to pixel, median", middle, "s", 1.0, tail),
    ]


def _growing(readings: list[Reading], *, whole: bool) -> list[Figure]:
    """Tell what grew; a limit is for ten minutes, of which the first two do not count."""
    heap, first, last = growth(readings, lambda one: one.heap) / 2**20, readings[0], readings[-1]
    counted = {name: growth(readings, lambda one, name=name: one.counts[name]) for name in last.counts}
    often = f"{len(readings)} readings in {last.seconds:.0f} s, garbage collected before each"
    short = "" if whole else "; --huge takes ten minutes and has a limit"
    told = ", ".join(f"{last.counts[name]} {name} {grown:+.0f}" for name, grown in counted.items())
    server = [one.server / 2**20 for one in readings]
    memory = f"{server[0]:.0f} MiB at first, {min(server):.0f} to {max(server):.0f}, {server[-1]:.0f} at last"
    now = f"from {first.heap / 2**20:.1f} to {last.heap / 2**20:.1f} MiB; {often}{short}"
    limits = (GROWTH, COUNTS) if whole else (None, None)
    return [
        Figure("page_live_growth", "  growth of the page's heap in ten minutes", heap, "MiB", limits[0], now),
        Figure("page_live_counts", "  growth of the most growing count", max(counted.values()), "", limits[1], told),
        Figure("page_live_server_memory", "  most memory of the server", max(server), "MiB", SERVER, memory),
    ]


def _latencies(seen: list[list[float]]) -> list[float]:
    """Return for each call of log() the seconds until a frame showed it; `seen` are pairs of time and newest value."""
    found: list[float] = []
    for (_, before), (now, newest) in itertools.pairwise(seen):
        calls = round((newest - before) % 100 * RATE)
        found += [(now - newest) % 100 + call / RATE for call in range(calls if calls < 100 else 0)]
    return found


def _fifty(browser: Any, root: Path, options: Options) -> list[Figure]:
    """Open many pages of one live run in one context, in small windows: the server is measured, not the browser."""
    pages, seconds = (2, 2.0) if options.quick else (PAGES, 30.0)
    root.mkdir(parents=True)
    alone = _trained(root / "alone", seconds)
    with Server(root, options.scratch) as server, Trainer(root, 20, 50.0) as trainer:
        key = server.key("live")
        context = browser.new_context(viewport=SMALL)
        context.set_default_timeout(120_000)
        opened = [context.new_page() for _ in range(pages)]
        for page in opened:
            page.goto(_address(server, key))
        opened[-1].wait_for_selector(".chart[data-state=drawn]")
        polls: list[str] = []
        context.on("request", lambda request: polls.append(request.url) if "/api/live" in request.url else None)
        load = Load(server.process.pid)
        opened[-1].wait_for_timeout(seconds * 1000)
        browser_ratio, server_ratio = load.ratios()
        told = trainer.stop()
        context.close()
    ratio = told["log_ns"] / alone["log_ns"]
    beside = f"log() {told['log_ns'] / 1e3:.1f} µs of CPU, {alone['log_ns'] / 1e3:.1f} without pages"
    crowd = f"{len(polls) / seconds:.0f} polls a second; browser {100 * browser_ratio:.0f} % of a core"
    return [
        Figure("page_fifty", f"{pages} pages on one live run: server", 100 * server_ratio, "% core", 50, crowd),
        Figure("page_fifty_trainer", "  log() in its trainer, times that without pages", ratio, "", 1.25, beside),
    ]


def _trained(root: Path, seconds: float) -> dict[str, Any]:
    with Trainer(root, 20, 50.0) as trainer:
        time.sleep(seconds)
        return trainer.stop()
