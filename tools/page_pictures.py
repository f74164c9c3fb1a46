"""Make the pictures of the page and the report: `python tools/page_pictures.py [--output FOLDER] [--all]`.

Serves synthetic runs (healthy, sick, crowded, hostile, ten million points, a thousand runs), opens each page in
headless Chromium and takes its picture, light and dark. With `--all`: every page, at 1440x900 and at 390x844.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "images"
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

SETTLED = """(view) => document.body.dataset.view === view && !document.querySelector('[aria-busy=true]') &&
  [...document.querySelectorAll('.chart')].filter((chart) => {
    const box = chart.getBoundingClientRect();
    return chart.checkVisibility() && box.bottom > 0 && box.top < innerHeight;
  }).every((chart) => ['drawn', 'empty'].includes(chart.dataset.state))"""
SETTLE_MS = 500


class Shot(NamedTuple):
    """One picture: its file name, the view, the name of the run, more parameters of the address."""

    name: str
    view: str
    run: str = ""
    query: str = ""


README = (
    Shot("page-training", "training", "gpt-small fp16"),
    Shot("page-system", "system", "gpt-small fp16"),
    Shot("page-ranks", "ranks", "gpt-large 64 GPUs", "by=node"),
    Shot("page-hang", "overview", "gpt-large that hangs"),
    Shot("page-console", "console", "gpt-small that failed", "ranks=5"),
)
ALL = (
    *README,
    Shot("page-runs", "runs"),
    Shot("page-overview-healthy", "overview", "gpt-small baseline"),
    Shot("page-overview-sick", "overview", "gpt-small fp16"),
    Shot("page-training-healthy", "training", "gpt-small baseline"),
    Shot("page-training-long", "training", "long"),
    Shot("page-training-crowded", "training", "200 metrics"),
    Shot("page-system-healthy", "system", "gpt-small baseline"),
    Shot("page-ledger", "ledger", "gpt-small fp16"),
    Shot("page-alerts", "alerts", "gpt-small fp16"),
    Shot("page-export", "export", "gpt-small baseline", "name=loss"),
    Shot("page-hostile-overview", "overview", "HOSTILE"),
    Shot("page-hostile-training", "training", "HOSTILE"),
    Shot("page-hostile-system", "system", "HOSTILE"),
    Shot("page-hostile-ledger", "ledger", "HOSTILE"),
    Shot("page-hostile-alerts", "alerts", "HOSTILE"),
    Shot("page-hostile-export", "export", "HOSTILE"),
)


def make_runs(root: Path) -> None:
    """Write the runs that are shown."""
    from bench.drawn_fleet import write_fleet
    from bench.drawn_hang import write_hung
    from bench.drawn_hostile import write_hostile
    from bench.drawn_runs import crowded, sick, ten_million, trained, write

    faster = trained("gpt-small lr 6e-4", 7)
    faster.config["optimizer"]["learning_rate"] = 6e-4
    faster.values["loss"] = faster.values["loss"] * 0.95
    runs = (trained("gpt-small baseline"), faster, sick("gpt-small fp16"), crowded("200 metrics"))
    for place, run in enumerate(runs):
        write(root / "demo" / f"20261115-1{place}0000-{place:04x}", run)
    write_fleet(root / "demo" / "20261115-150000-large", "gpt-large 64 GPUs", state="finished")
    write_hung(root / "demo" / "20261115-160000-hangs", "gpt-large that hangs")
    _write_failed(root / "demo" / "20261115-170000-fails")
    ten_million(root / "demo" / "20261115-140000-long")
    write_hostile(root)


def _write_failed(path: Path) -> None:
    """Write a job of eight ranks, one of which fails, with what they printed."""
    from bench.drawn_console import HOSTILE, printed, write_console
    from bench.drawn_fleet import USUAL, write_fleet
    from bench.drawn_runs import SECOND, START

    write_fleet(path, "gpt-small that failed", nodes=1, steps=400, state="failed")
    lines = printed(START / SECOND, USUAL, 400, 8, "node-0", guilty=5)
    write_console(path, [line for line in lines if line.text not in HOSTILE])


def place_of(keys: dict[str, str], shot: Shot) -> str:
    """Return where on the page a picture is taken."""
    from bench.drawn_hostile import PAYLOADS

    query = shot.query
    if shot.view == "compare":
        query = urlencode(
            [("run", keys["gpt-small baseline"]), ("run", keys["gpt-small lr 6e-4"]), ("run", keys["gpt-small fp16"])]
        )
    key = keys[PAYLOADS[0] if shot.run == "HOSTILE" else shot.run] if shot.run else ""
    place = f"run/{quote(key, safe='')}/{shot.view}" if key else ("" if shot.view == "runs" else shot.view)
    return f"#/{place}{f'?{query}' if query else ''}"


def report_of(root: Path, run: str, scratch: Path) -> str:
    """Write the HTML report of a run and return its address."""
    path = scratch / "report.html"
    command = [sys.executable, "-m", "stepscope", "report", run, "--dir", str(root), "--html", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path.as_uri()


def take_report(browser: Any, address: str, size: dict[str, int], scheme: str) -> bytes:
    """Open a report and return its picture."""
    context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    try:
        page = context.new_page()
        page.goto(address)
        page.wait_for_load_state("networkidle")
        return bytes(page.screenshot())
    finally:
        context.close()


def take(browser: Any, where: str, view: str, size: dict[str, int], scheme: str) -> bytes:
    """Visit a page and return its picture."""
    context = browser.new_context(
        viewport=size, color_scheme=scheme, locale="en-GB", timezone_id="UTC", reduced_motion="reduce"
    )
    try:
        page = context.new_page()
        page.goto(where)
        page.wait_for_function(SETTLED, arg=view, timeout=30_000)
        page.wait_for_timeout(SETTLE_MS)  # the page of a live run never stops asking
        return bytes(page.screenshot())
    finally:
        context.close()


def main(argv: list[str]) -> int:
    """Make the pictures and return the exit code."""
    from playwright.sync_api import sync_playwright

    from bench.chromium import DESKTOP, PHONE, launched
    from bench.drawn_runs import many
    from bench.sandbox import sandbox
    from bench.served import Server

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=PICTURES, help="folder to write to (default: %(default)s)")
    parser.add_argument("--all", action="store_true", help="every page, with a thousand runs and hostile names too")
    parser.add_argument("--only", default="", help="only pictures whose name holds this")
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    shots = (
        [shot for shot in (*ALL, Shot("page-compare", "compare")) if options.only in shot.name]
        if options.all
        else README
    )
    sizes = {"desktop": DESKTOP, "phone": PHONE} if options.all else {"": DESKTOP}
    with ExitStack() as stack:
        scratch = stack.enter_context(sandbox())
        make_runs(scratch / "runs")
        server = stack.enter_context(Server(scratch / "runs", scratch))
        browser = launched(stack.enter_context(sync_playwright()))
        places = [(shot, server.page(place_of(server.keys(), shot))) for shot in shots]
        if options.all and options.only in "page-thousand":
            many(scratch / "many")
            crowd = stack.enter_context(Server(scratch / "many", scratch))
            crowd.keys()
            places.append((Shot("page-thousand", "runs"), crowd.page("#/")))
        address = report_of(scratch / "runs", "gpt-small fp16", scratch)
        for scheme in () if options.all else ("light", "dark"):
            (options.output / f"report-{scheme}.png").write_bytes(take_report(browser, address, DESKTOP, scheme))
            print(options.output / f"report-{scheme}.png", flush=True)
        for shot, where in places:
            for label, size in sizes.items():
                for scheme in ("light", "dark"):
                    name = "-".join(part for part in (shot.name, label, scheme) if part)
                    (options.output / f"{name}.png").write_bytes(take(browser, where, shot.view, size, scheme))
                    print(options.output / f"{name}.png", flush=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
