"""One run of 512 ranks on 64 nodes, 10 000 steps and 20 metrics each: how fast it is read.

`python -m bench.many_ranks --folder F [--ranks 64 --steps 1000]` only makes the run, in F/ranks, and prints where.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from bench.figure import Figure, Options
from bench.processes import python
from bench.served import Server
from bench.synthetic_ranks import RankRun, make

KEPT = Path(tempfile.gettempdir()) / "stepscope-many-ranks"
"""Where the run of the figures is kept: making it takes a minute."""
PAGE, HEAT_MAP, MEMORY = 1.5, 1.0, 1024.0
"""Limits: seconds of the first page and of a map of ranks, MiB of any process."""
COMMANDS = {"show": 2.0, "show --json": None, "ranks": 2.0, "diagnose": None, "ledger": None}
"""Commands, each with its limit in seconds."""
FOUND = 1
"""Exit code of a diagnosis that has found something."""
FIRST = (
    "/api/run?run={}",
    "/api/names?run={}",
    "/api/live?run={}",
    "/api/alerts?run={}",
    "/api/events?run={}&limit=500",
)
"""What the page of a run asks for at first, before its charts."""


RANKS_TAB = ("/api/ranks?run={}", "/api/ranks/map?run={}&what=step")
"""What the Ranks tab asks for, both at once: its table, and its map."""


def kept(root: Path, plan: RankRun) -> Path:
    """Return the run of this plan below a folder; make it if it is not there."""
    path = root / "ranks" / f"many-{plan.ranks}-{plan.steps}-{plan.seed}"
    if not path.is_dir():
        draft = path.with_name(f"{path.name}-draft")
        draft.parent.mkdir(parents=True, exist_ok=True)
        make(draft, plan, path.name)
        draft.rename(path)
    return path


def measure(options: Options) -> list[Figure]:
    """Return the figures of reading a run of many ranks."""
    plan = RankRun(ranks=64, steps=1000) if options.quick else RankRun()
    began = time.monotonic()
    run = kept(options.scratch if options.quick else KEPT, plan)
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    beside = f"{plan.ranks} ranks on {plan.nodes} nodes, {plan.steps} steps, {time.monotonic() - began:.0f} s to make"
    return [
        Figure("many_ranks_size", "the run on disk", size / 2**20, "MiB", None, beside),
        *_commands(run),
        *_page(run, options.scratch),
    ]


def _commands(run: Path) -> list[Figure]:
    """Return wall time and memory of commands in fresh processes."""
    found = []
    for words, limit in COMMANDS.items():
        seconds, memory, cpu = _command(*words.split(), str(run))
        key = words.replace(" --", "_").replace(" ", "_")
        found.append(Figure(f"many_ranks_{key}", f"stepscope {words}", seconds, "s", limit, f"{cpu:.2g} s of CPU"))
        found.append(Figure(f"many_ranks_{key}_memory", "  its memory", memory, "MiB", MEMORY))
    return found


def _command(*words: str) -> tuple[float, float, float]:
    """Return seconds, most memory in MiB and CPU seconds of a command."""
    began = time.monotonic()
    child = python("-m", "stepscope", *words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert child.stderr is not None
    said = child.stderr.read().decode()
    child.stderr.close()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in {0, FOUND}:
        raise RuntimeError(f"stepscope {' '.join(words)} ended with {child.returncode}: {said[-400:]}")
    return time.monotonic() - began, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime


def _page(run: Path, scratch: Path) -> list[Figure]:
    """Return what the first page of the run takes in a server that has just started."""
    with Server(run.parent.parent, scratch) as server:
        key = quote(server.key_of(run.name), safe="")
        began = time.monotonic()
        with ThreadPoolExecutor(len(FIRST) + 1) as pool:
            diagnosis = pool.submit(_timed, server, f"/api/diagnosis?run={key}")
            answers = dict(zip(FIRST, pool.map(lambda path: _asked(server, path.format(key)), FIRST), strict=True))
            charts = _timed(server, _series(key, json.loads(answers[FIRST[0]][1])["important"]))
            first = time.monotonic() - began
            judged = diagnosis.result()
        beside = ", ".join(f"{path.partition('?')[0][5:]} {seconds:.2f}" for path, (seconds, _) in answers.items())
        grid = _timed(server, _series(key, ["phase/forward"]))
        cold, warm = (_ranks_tab(server, key) for _ in range(2))
        other = _timed(server, f"{RANKS_TAB[1].format(key).partition('&')[0]}&what=phase/backward")
        facts = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
        peak = next(int(line.split()[1]) for line in facts.splitlines() if line.startswith("VmHWM")) / 1024
    return [
        Figure("many_ranks_page", "first page, all its requests", first, "s", PAGE, f"{beside}, series {charts:.2f}"),
        Figure("many_ranks_chart", "one more chart", grid, "s", HEAT_MAP),
        Figure("many_ranks_map", "the Ranks tab's map, at first", cold[1], "s", HEAT_MAP, f"again {warm[1]:.2f}"),
        Figure("many_ranks_table", "its table, beside it", cold[0], "s", HEAT_MAP, f"again {warm[0]:.2f}"),
        Figure("many_ranks_map_metric", "its map of another metric", other, "s", HEAT_MAP),
        Figure("many_ranks_diagnosis", "the diagnosis that appears on it", judged, "s", None),
        Figure("many_ranks_server", "memory of the server", peak, "MiB", MEMORY),
    ]


def _ranks_tab(server: Server, key: str) -> list[float]:
    """Return the seconds of each request of the Ranks tab, which sends them together."""
    with ThreadPoolExecutor(len(RANKS_TAB)) as pool:
        return list(pool.map(lambda path: _timed(server, path.format(key)), RANKS_TAB))


def _series(key: str, names: list[str]) -> str:
    return f"/api/series?run={key}&points=800&fold=worst&" + "&".join(f"name={quote(name, safe='')}" for name in names)


def _timed(server: Server, path: str) -> float:
    return _asked(server, path)[0]


def _asked(server: Server, path: str) -> tuple[float, bytes]:
    """Return the seconds of a request, and its answer."""
    began = time.monotonic()
    answer = server.read(path)
    return time.monotonic() - began, answer


def main(arguments: list[str]) -> int:
    """Make a run and print its folder."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_ranks", description="Make a run of many ranks.")
    parser.add_argument("--folder", type=Path, default=KEPT, help="folder of runs to keep it in")
    parser.add_argument("--ranks", type=int, default=RankRun.ranks)
    parser.add_argument("--steps", type=int, default=RankRun.steps)
    given = parser.parse_args(arguments)
    began = time.monotonic()
    run = kept(given.folder, RankRun(ranks=given.ranks, steps=given.steps))
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    sys.stdout.write(f"{run}\n{size / 2**20:.0f} MiB, {time.monotonic() - began:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
