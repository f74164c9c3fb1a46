"""The server alone: how soon it answers, what a thousand runs and fifty pages cost it, and how fast curves come.

Memory is the proportional set of the process (PSS); CPU is that of the server's process.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np

from bench.drawn_runs import ten_million
from bench.figure import Figure, Options
from bench.processes import environment, python
from bench.served import Server, Trainer, free_port, token_of
from bench.synthetic import START, WRITER, long_run, small_run
from bench.viewers import QUICK, VIEWERS, Viewer
from stepscope.store.layout import RunFolder
from stepscope.store.points import NO_NS, Points
from stepscope.store.sealed import write_sealed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAMES = ("loss", "accuracy", "learning_rate", "grad_norm", "step_seconds")
POINTS = 100_000
"""Points of each of the many runs, of these metrics together."""
PAGES, POLL, FOLLOWED = 50, 0.5, 100
"""Pages on one live run, seconds between two questions of each, and metrics of the run."""
CHARTS = 12
"""Curves that one question asks for: what fits a screen."""


def measure(options: Options) -> list[Figure]:
    """Return the figures of the server."""
    root = options.scratch / "serving"
    peers = [_beside(viewer, root / viewer.key, options) for viewer in VIEWERS]
    return [*_many(root, options), *peers, *_long(root, options), *_pages(root, options)]


def many_runs(root: Path, count: int, points: int) -> None:
    """Make so many runs with points: one is written, the others have its files by hard links."""
    units: list[Path] = []
    for index in range(count):
        path = root / f"project-{index % 10}" / f"20261116-120000-{index:04x}"
        small_run(path, f"run {index}", points // len(NAMES))
        for unit in units:
            os.link(unit, path / "metrics" / unit.name)
        if not units:
            _seal(path, points // len(NAMES))
            units = sorted((path / "metrics").iterdir())


def _seal(path: Path, steps: int) -> None:
    """Give a run its metrics: noise around a falling curve."""
    random, step = np.random.default_rng(0), np.arange(steps, dtype=np.int64)
    value = random.normal(0.2, 0.02, (len(NAMES), steps)) + np.exp(-step / steps * 4)
    same = np.zeros(steps * len(NAMES), np.int32)
    points = Points(
        list(NAMES),
        name=np.repeat(np.arange(len(NAMES), dtype=np.int32), steps),
        rank=same,
        attempt=same.copy(),
        seq=np.tile(step, len(NAMES)),
        step=np.tile(step, len(NAMES)),
        time=np.tile(START + step * 250_000, len(NAMES)),
        value=value.reshape(-1),
        ns=np.full(steps * len(NAMES), NO_NS, np.int64),
    )
    stem = RunFolder(path).unit_stem(WRITER, 0, 0)
    write_sealed(path / "metrics", stem, points, last_seq={"0": steps - 1})


def _many(root: Path, options: Options) -> list[Figure]:
    count, points = (100, 10_000) if options.quick else (1000, POINTS)
    many_runs(root / "many", count, points)
    first = statistics.median(_first_answer(root / "many", options.scratch) for _ in range(1 if options.quick else 5))
    with Server(root / "many", options.scratch) as server:
        began = time.monotonic()
        listed = _settled(server, count)
        seconds = time.monotonic() - began
        pss = _pss(server.process.pid)
        cpu = _cpu(server.process.pid)
    cards = sum(row["card"] is not None for row in listed["rows"])
    beside = f"{cards} of them with figures and curve after {seconds:.0f} s, {cpu:.1f} s CPU"
    title = f"memory with {count} runs of {points // 1000} k points"
    return [
        Figure("serving_first", f"`stepscope serve` of {count} runs to its first answer", first, "s", 1.0),
        Figure("serving_memory", title, pss / 2**20, "MiB", 200.0, beside),
    ]


def _first_answer(root: Path, scratch: Path) -> float:
    """Return the seconds from the start of the program until /api/runs is answered."""
    port = free_port()
    environ = environment(STEPSCOPE_RUNTIME_DIR=str(scratch / "runtime"), HOME=str(scratch))
    began = time.monotonic()
    process = python("-m", "stepscope", "serve", str(root), "--port", str(port), env=environ, cwd=scratch, stdout=-3)
    try:
        while time.monotonic() - began < 30:
            try:
                _ask(port, {"Authorization": f"Bearer {token_of(scratch, port)}"}, "/api/runs")
            except OSError:
                time.sleep(0.005)
            else:
                return time.monotonic() - began
        raise RuntimeError("the server does not answer")
    finally:
        process.terminate()
        process.wait()


def _beside(viewer: type[Viewer], root: Path, options: Options) -> Figure:
    """Start a peer over the same numbers as ours; fewer than above, which would take it minutes."""
    count, points = viewer.runs, viewer.points
    what = f"  {viewer.title}, {count} runs of {points / 1000:g} k points"
    missing = QUICK if options.quick else viewer.missing()
    if missing:
        return Figure(f"serving_{viewer.key}", what, None, beside=missing)
    many_runs(root / "runs", count, points)
    with Server(root / "runs", options.scratch) as server:
        began = time.monotonic()
        _settled(server, count)
        whole, own = time.monotonic() - began, _pss(server.process.pid)
    first = _first_answer(root / "runs", options.scratch)
    peer = viewer(root / "peer")
    peer.folder.mkdir()
    peer.write(root / "runs")
    with peer:
        answered, listed = peer.answered(), peer.until(count)
        memory = peer.memory()
    beside = f"ours {first:.2f} s; all listed after {listed:.1f} s, ours {first + whole:.1f} s with curves; "
    beside += f"memory {memory / 2**20:.0f} MiB, ours {own / 2**20:.0f} MiB"
    return Figure(f"serving_{viewer.key}", f"{what}: first answer", answered, "s", None, beside)


def _settled(server: Server, count: int) -> dict[str, Any]:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        listed: dict[str, Any] = server.get("/api/runs")
        if listed["complete"] and not listed["reading"] and listed["total"] == count:
            return listed
        time.sleep(0.5)
    raise RuntimeError("the list is never complete")


def _long(root: Path, options: Options) -> list[Figure]:
    """Time curves of a run of 10 M points, whole and zoomed."""
    folder = root / "long" / "big" / "tenmillion"
    if options.quick:
        long_run(folder, 50, 20_000, 4)
    else:
        ten_million(folder)
    with Server(root / "long", options.scratch) as server:
        server.keys()
        metrics = server.get("/api/names?run=big%2Ftenmillion")["metrics"]
        names = [metric["name"] for metric in metrics if metric["source"] == "training"][:CHARTS]
        last = 20_000 if options.quick else 200_000
        whole = _timed(server, names, [(None, None)] * 5)
        spans = [(last * low // 100, last * high // 100) for low, high in ((20, 70), (40, 50), (44, 45), (10, 11))]
        zoomed = _timed(server, names, spans * 2)
    title = f"{CHARTS} curves of {'1' if options.quick else '10'} M points"
    return [
        Figure("serving_curves", f"{title}, whole", statistics.median(whole), "s", 0.5),
        Figure("serving_zoom", f"{title}, of any range, slowest", max(zoomed), "s", 0.2),
    ]


def _timed(server: Server, names: Sequence[str], spans: Sequence[tuple[int | None, int | None]]) -> list[float]:
    found = []
    for low, high in spans:
        query: dict[str, Any] = {"run": "big/tenmillion", "name": list(names), "points": 800}
        query |= {} if low is None else {"from": low, "to": high}
        began = time.monotonic()
        _ask(server.port, server.bearer, f"/api/series?{urlencode(query, doseq=True)}")
        found.append(time.monotonic() - began)
    return found


def _pages(root: Path, options: Options) -> list[Figure]:
    """Have fifty pages follow one live run, as the page does: a question each every half second."""
    seconds = 3.0 if options.quick else 30.0
    folder = root / "live"
    with Trainer(folder, FOLLOWED, 20.0), Server(folder, options.scratch) as server:
        key = server.key("live")
        cursor = json.loads(_ask(server.port, server.bearer, f"/api/live?{urlencode({'run': key})}"))["cursor"]
        stop = threading.Event()
        answers: list[int] = []
        clients = [
            threading.Thread(target=_follow, args=(server, key, cursor, number, stop, answers))
            for number in range(PAGES)
        ]
        for client in clients:
            client.start()
        time.sleep(1.0)
        before, asked, began = _cpu(server.process.pid), len(answers), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        share = (_cpu(server.process.pid) - before) / took
        rate = (len(answers) - asked) / took
        stop.set()
        for client in clients:
            client.join()
    beside = f"{rate:.0f} answers a second of {statistics.mean(answers) / 1024:.0f} KiB"
    title = f"{PAGES} pages on a live run of {FOLLOWED} metrics, server"
    return [Figure("serving_pages", title, 100 * share, "% of a core", 50.0, beside)]


def _follow(server: Server, key: str, cursor: str, number: int, stop: threading.Event, answers: list[int]) -> None:
    """Ask for what is new until told to stop, on one connection, as a page does."""
    stop.wait(POLL * number / PAGES)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    bearer = server.bearer
    while not stop.is_set():
        connection.request("GET", f"/api/live?{urlencode({'run': key, 'since': cursor})}", headers=bearer)
        response = connection.getresponse()
        data = response.read()
        if response.status == 200:
            cursor = data[data.rindex(b'"cursor":"') + 10 :].partition(b'"')[0].decode()
        answers.append(len(data))
        stop.wait(POLL)
    connection.close()


def _ask(port: int, bearer: dict[str, str], path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers=bearer)
        response = connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path[:100]} was answered by {response.status}")
        return data
    finally:
        connection.close()


def _pss(pid: int) -> int:
    """Return the proportional memory of a process, in bytes."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


def _cpu(pid: int) -> float:
    """Return the processor seconds of a process."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
