"""Watch a live run in the terminal: progress, graphs, the step, GPUs, processes, ranks, alerts.

Without RUN it follows the newest running run, and switches to the next run when it starts; if no run is running, it
shows this machine. A run that has ended can be shown too. In a pipe, a log, or with TERM=dumb it prints a line every
few seconds instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import FINE, RUN, add_shared
from stepscope.cli.commands.monitor import LONGEST, SHORTEST
from stepscope.cli.named_run import find_run, say
from stepscope.cli.signals import ended_by_signals
from stepscope.cli.text.number import gpu_index, real
from stepscope.cli.text.terminal import is_dashboard_terminal
from stepscope.core.numbers import format_count, format_duration, format_share, format_value
from stepscope.core.terminal_text import plain
from stepscope.store.catalog import changed_at, chosen_root, elsewhere, run_folders, runs_root, salvage_quietly

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from stepscope.tui.feed import SceneFeed
    from stepscope.views.terminal import TerminalScene

INTERVAL = 0.5
LINE_SECONDS = 5.0
"""Seconds between two printed lines, unless --interval is given."""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    text = f"{RUN} (default: the newest running run)"
    parser.add_argument("run", metavar="RUN", nargs="?", help=text)
    add_shared(parser, "dir")
    add = parser.add_argument
    add("--machine", action="store_true", help="show this machine only, even if a run is running")
    add("--gpu", type=gpu_index, action="append", metavar="N", help="only this GPU; may be repeated (default: all)")
    text = "refresh interval in seconds, at least 0.1 (default: 0.5)"
    add("--interval", type=real(SHORTEST, LONGEST), metavar="S", help=text)
    add("--count", type=int, metavar="N", help="print so many lines and end, even on a terminal")
    add("--json", action="store_true", help="print one JSON object per refresh instead")


def run(options: argparse.Namespace) -> int:
    """Show until `q`, or print lines."""
    salvage_quietly()
    feed = _feed(options)
    if options.json or options.count is not None or not is_dashboard_terminal():
        return _print(feed, options)
    from stepscope.tui.app import TopApp
    from stepscope.tui.frame import ViewOptions

    gpus = tuple(options.gpu) if options.gpu else None
    view = "overview" if feed.scene.is_run else "machine"
    newer = None if options.run or options.machine else _Newest(options)
    app = TopApp(feed, options.interval or INTERVAL, ViewOptions(view=view, gpus=gpus), newer)
    app.run()
    return app.return_code or FINE


def _feed(options: argparse.Namespace) -> SceneFeed:
    from stepscope.tui.run_feed import RunFeed

    if options.run:
        return RunFeed(find_run(options.run, options.dir))
    path = None if options.machine else _running(options.dir)
    if path is not None:
        return RunFeed(path)
    note = "" if options.machine else "no run is running; `stepscope top latest` shows the last one"
    return _machine(options, note)


def _running(given: str | None) -> Path | None:
    """Return the newest running run in the default folder, else in another folder of this user."""
    root, is_given = chosen_root(given)
    here = newest_running(root)
    if here is not None or is_given:
        return here
    found = next((path for other in elsewhere(root) if (path := newest_running(other)) is not None), None)
    if found is not None:
        say(f"no run is running in {root}: this is {found}")
    return found


def _machine(options: argparse.Namespace, note: str = "") -> SceneFeed:
    from stepscope.tui.feed import MachineFeed
    from stepscope.watcher.machine import LocalMachine, local_samplers

    machine = LocalMachine(local_samplers(all_gpus=options.gpu is not None), options.interval or INTERVAL)
    return MachineFeed(machine, os.uname().nodename, note)


def newest_running(root: Path) -> Path | None:
    """Return the newest running run below a folder; None if there is none."""
    from stepscope.views.run_list import row

    made = []
    for path in run_folders(root):
        try:
            made.append((path.stat().st_ctime, path))
        except OSError:  # removed since
            continue
    for _, path in sorted(made, reverse=True)[:50]:
        found = row(path)
        if found["state"] == "running" and found["created"] > 0:
            return path
    return None


class _Newest:
    """Switches to a run that started after the shown run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._root = options, runs_root(options.dir)
        self._seen: tuple[float, ...] = ()

    def __call__(self, feed: SceneFeed) -> SceneFeed | None:
        """Return the feed of a newer run, or None; reads runs only if a folder has changed."""
        from stepscope.core.errors import StepscopeError
        from stepscope.tui.run_feed import RunFeed

        stamps = tuple(changed_at(path) for path in (self._root, *_folders(self._root)))
        if stamps == self._seen:
            return None
        path = newest_running(self._root)
        shown = feed.path if feed.scene.state == "running" else None
        if path is None or path == feed.path or (shown is not None and _begun(path) <= _begun(shown)):
            self._seen = stamps
            return None
        try:
            return RunFeed(path)
        except (StepscopeError, OSError):  # it is still being created: try again later
            return None


def _begun(path: Path) -> float:
    from stepscope.views.run_list import row

    return float(row(path)["created"])


def _folders(root: Path) -> list[Path]:
    try:
        return [path for path in sorted(root.iterdir()) if path.is_dir()][:1000]
    except OSError:
        return []


def _print(feed: SceneFeed, options: argparse.Namespace) -> int:
    """Print one line or object per refresh; a run that has ended gets one."""
    from stepscope.tui.saving import facts

    interval = options.interval or (LINE_SECONDS if options.count is None else INTERVAL)
    done = 0
    with ended_by_signals():
        try:
            _read_past(feed)
            while True:
                feed.poll()
                scene = feed.scene
                text = json.dumps(facts(scene), allow_nan=False) if options.json else line(scene, options.gpu)
                print(text, flush=True)
                done += 1
                over = scene.is_run and scene.state != "running"
                if over or (options.count is not None and done >= options.count):
                    return FINE
                time.sleep(interval)
        finally:
            feed.close()


def _read_past(feed: SceneFeed) -> None:
    from stepscope.tui.reading import SECONDS, command, environment, opened

    asked = feed.wanted()
    if asked is None or feed.path is None:
        time.sleep(0.2)  # rates need a past
        return
    words = command(feed.path, asked)
    done = subprocess.run(words, capture_output=True, env=environment(), timeout=SECONDS, check=False)
    if done.returncode:
        feed.failed(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])
    else:
        feed.answered(*opened(done.stdout))


def line(scene: TerminalScene, gpus: list[int] | None = None) -> str:
    """Return the state of the run or machine on one line."""
    from stepscope.cli.text.machine_lines import one_line

    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(scene.now))
    values: dict[str, float] = {}
    for _, node in sorted(scene.nodes.items()):
        values |= node.values
    if not scene.is_run:
        return f"{stamp}  {one_line(values, gpus)}"
    parts = [stamp, plain(scene.title), scene.state, *_run_parts(scene.status, scene)]
    if values:
        parts.append(one_line({name: value for name, value in values.items() if _brief(name)}, gpus))
    if scene.firing():
        worst = scene.firing()[0]
        parts.append(f"ALERT {plain(worst['rule'])}: {plain(worst['text'])}")
    return "  ".join(part for part in parts if part)


def _run_parts(told: dict[str, Any], scene: TerminalScene) -> list[str]:
    parts = []
    if told.get("step") is not None:
        of = f"/{format_count(told['total_steps'])}" if told.get("total_steps") else ""
        parts.append(f"step {format_count(told['step'])}{of}")
    if told.get("rate"):
        parts.append(format_value(told["rate"], "steps/second"))
    if told.get("left") is not None:
        parts.append(f"{format_duration(told['left'])} left")
    for name in scene.shown[:2]:
        curve = scene.curves[name]
        parts.append(f"{plain(name)} {format_value(curve.history.last, curve.unit)}")
    phases = scene.phases()
    if phases:
        longest = max(phases, key=lambda phase: phase.share)
        parts.append(f"{plain(longest.name)} {format_share(longest.share)} of the step")
    return parts


def _brief(name: str) -> bool:
    return name.startswith("gpu/") or name in {"cpu/usage_ratio", "memory/used_ratio"}
