"""What the watcher costs with 8 GPUs and 16 processes, how soon it knows of a death; peers beside it.

The GPUs are those of the fake driver of the tests: it answers at once, so a real driver's own time comes on top.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import standing
from bench.figure import Figure, Options
from bench.processes import WATCHER, children, cpu_seconds, environment, find, kib, python, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS, STRETCHES = 16, 3
WAYS = {
    "SIGKILL": ("os.kill(os.getpid(), 9)", "killed", "killed by SIGKILL"),
    "SIGSEGV": ("os.kill(os.getpid(), 11)", "killed", "killed by SIGSEGV"),
    "exception": ("raise ValueError('bad batch')", "failed", "ValueError: bad batch"),
    "exit code": ("sys.exit(3)", "failed", "exit code 3"),
    "os._exit": ("os._exit(7)", "failed", "exit code 7"),
    "OOM": ("hold = [bytearray(8 << 20) for _ in range(64)]", "oom-killed", "out of memory: limit 80 MiB"),
}
"""How the trainers end: what they do, and the state and cause that must be told."""
END = """
import os, sys, time, stepscope
if len(sys.argv) > 4:
    open(sys.argv[4], "w").write("0")
run = stepscope.init(project="ends", dir=sys.argv[1], run_id=sys.argv[2])
run.log(a=1.0)
while not os.path.exists(os.path.join(run.path, "nodes")) or not os.listdir(os.path.join(run.path, "nodes")):
    time.sleep(0.01)
time.sleep(float(sys.argv[3]))
print(time.time(), flush=True)
{end}
"""
PEERS = {
    "nvitop": "from nvitop import Device\nimport time\ndevices = Device.all()\nwhile True:\n"
    "    for device in devices:\n        device.as_snapshot()\n    time.sleep(1)",
    "wandb": "import wandb, time\nrun = wandb.init(project='x', mode='offline', dir=__import__('sys').argv[1],"
    " settings=wandb.Settings(x_stats_sampling_interval=1.0, silent=True))\ntime.sleep(1e6)",
}
"""Programs that sample the same machine once a second."""


def measure(options: Options) -> list[Figure]:
    """Return cost of the watcher and its NVML helper, and the time from a death to its event."""
    seconds = 5.0 if options.quick else 20.0
    kills = 10 if options.quick else 100
    gpus = _fake_driver(options.scratch)
    cpu, pss, watched = _cost(options.scratch / "sampling", seconds, gpus, rules=False)
    ruled, ruled_pss, _ = _cost(options.scratch / "ruled", seconds, gpus, rules=True)
    worst, median, wrong, ways = _deaths(options.scratch / "ends", kills)
    beside = ", ".join(filter(None, (_peer(name, options.scratch, seconds, gpus) for name in PEERS)))
    return [
        Figure("sampling_cpu", f"watcher and NVML helper, {watched}", cpu, "% of a core", 1.5, beside),
        Figure("sampling_pss", "  their PSS", pss / 1024, "MiB", 80.0),
        Figure("ruled_cpu", "  with the default alert rules, which `alerting` measures", ruled, "% of a core"),
        Figure("ruled_pss", "  their PSS", ruled_pss / 1024, "MiB", 80.0),
        Figure("death", f"{kills} deaths to their durable event, longest", worst, "s", 1.0, f"median {median:.3f} s"),
        Figure("death_cause", "  causes told wrong", float(wrong), "", 0.0, ways),
        *standing.measure(options, gpus),
    ]


def _fake_driver(scratch: Path) -> dict[str, str]:
    """Return the environment in which 8 GPUs are seen; an empty one where they cannot be made."""
    if shutil.which("gcc") is None:
        return {}
    from tests.nvml.build import FakeDriver, build

    folder = scratch / "nvml"
    folder.mkdir(parents=True)
    variables: dict[str, str] = FakeDriver(build(folder), folder / "state").environment()
    return variables


def _cost(root: Path, seconds: float, gpus: dict[str, str], *, rules: bool) -> tuple[float, int, str]:
    """Return CPU in percent of a core, the median of several stretches, PSS in KiB, and what was watched."""
    trainers = [_rank(root, rank, gpus, rules=rules) for rank in range(RANKS)]
    try:
        wait_until(lambda: any(root.glob("*/*/nodes/*.json")), 120.0)  # it watches, and no other is elected
        time.sleep(5.0)
        watcher = find(WATCHER, root)[0]
        cpu = statistics.median(_share(watcher, seconds) for _ in range(STRETCHES))
        pss = sum(kib(pid, "Pss", "smaps_rollup") for pid in (watcher, *children(watcher)))
    finally:
        for trainer in trainers:
            trainer.kill()
            trainer.wait()
    wait_until(lambda: not find(WATCHER, root), 30.0)
    return cpu, pss, f"{8 if gpus else 0} GPUs, {RANKS} processes, 1 Hz"


def _share(watcher: int, seconds: float) -> float:
    """Return what the watcher and its helper take of a core, in percent, over a stretch of time."""
    before, start = _spent(watcher), time.monotonic()
    time.sleep(seconds)
    return (_spent(watcher) - before) / (time.monotonic() - start) * 100


def _rank(root: Path, rank: int, gpus: dict[str, str], *, rules: bool) -> subprocess.Popen[bytes]:
    variables = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS)}
    more = environment(**variables, **gpus, STEPSCOPE_RUN_ID="sampling")
    return python("-m", "bench.watching", str(root), str(rules), env=more, stdin=subprocess.DEVNULL)


def _spent(watcher: int) -> float:
    """Return the CPU seconds of the watcher and of its living children (the NVML helper)."""
    return sum(cpu_seconds(pid)[0] for pid in (watcher, *children(watcher)))


def _peer(name: str, scratch: Path, seconds: float, gpus: dict[str, str]) -> str:
    """Return what a peer takes for the same: it, and whatever it started."""
    if subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, check=False).returncode:
        return f"{name} not installed"
    peer = python(
        *("-c", PEERS[name], str(scratch)),
        env=environment(**gpus),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        time.sleep(6.0)
        before, start = _family(peer.pid), time.monotonic()
        time.sleep(seconds)
        cpu = (sum(_family(peer.pid).values()) - sum(before.values())) / (time.monotonic() - start) * 100
        pss = sum(kib(pid, "Pss", "smaps_rollup") for pid in before)
    finally:
        os.killpg(peer.pid, signal.SIGKILL)
        peer.wait()
    return f"{name} {cpu:.2f} % {pss / 1024:.0f} MiB"


def _family(pid: int) -> dict[int, float]:
    found, waiting = {}, [pid]
    while waiting:
        one = waiting.pop()
        found[one] = cpu_seconds(one)[0]
        waiting += children(one)
    return found


def _deaths(root: Path, count: int) -> tuple[float, float, int, str]:
    """Let trainers die in every way; return longest and median seconds to the event, how many were told wrong, ways."""
    draw, waits, wrong = random.Random(0), [], 0
    with _memory_group() as group:
        ways = {name: way for name, way in WAYS.items() if name != "OOM" or group}
        for number in range(count):
            kind, (end, state, cause) = list(ways.items())[number % len(ways)]
            name = f"end-{number}"
            more = [group] if kind == "OOM" else []
            child = python(
                *("-c", END.replace("{end}", end), str(root), name, f"{draw.random() * 0.3:.3f}", *more),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**environment(), "PYTHONWARNINGS": "ignore"},
            )
            died = float(child.communicate(timeout=120)[0])
            told = _ended(root / "ends" / name)
            waits.append(told["time"] - died)
            wrong += told["state"] != state or not told["cause"].startswith(cause)
    return max(waits), statistics.median(waits), wrong, ", ".join(ways)


@contextlib.contextmanager
def _memory_group() -> Iterator[str]:
    """Make a memory cgroup of 80 MiB; give the path of its list of processes, empty where none can be made."""
    version1 = Path("/sys/fs/cgroup/memory")
    folder = (version1 if version1.is_dir() else Path("/sys/fs/cgroup")) / f"stepscope-bench-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if version1.is_dir() else "memory.max")).write_text(str(80 << 20))
    except OSError:
        yield ""
        return
    try:
        yield str(folder / "cgroup.procs")
    finally:
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), 60.0)
        folder.rmdir()


def _ended(run: Path) -> dict[str, Any]:
    """Return the event of the end of a run, and when its file was written, in seconds since 1970."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        for path in (run / "events").glob("*.jsonl"):
            lines = [json.loads(line) for line in path.read_bytes().splitlines()]
            ends = [line for line in lines if line["kind"] == "ended"]
            found.extend({**line, "time": path.stat().st_mtime} for line in ends[-1:])
        return bool(found)

    wait_until(look, 30.0)
    return found[-1]


def main(arguments: list[str]) -> int:
    """Be one rank that takes a step twice a second."""
    import stepscope

    run = stepscope.init(project="watching", dir=Path(arguments[0]), alerting__enabled=arguments[1] == "True")
    while True:
        with run.step():
            time.sleep(0.5)
        run.log(loss=1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
