"""Who loses how many rows on SIGKILL: a trainer that logs ten scalars every millisecond is killed at a random step.

Lost are the calls that had returned but whose last scalar the logger's own reader does not give back.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

from bench.figure import Figure, Options
from bench.peers import KEYS, OURS, PEERS, rows
from bench.processes import environment, output_of, python, wait_until
from bench.sandbox import settled

PACE = 0.001
COUNT = struct.Struct("<q")


def measure(options: Options) -> list[Figure]:
    """Return the steps that each logger loses, of some kills each."""
    kills, steps = (1, 300) if options.quick else (3, 2000)
    draw = random.Random(options.seed)
    lost: dict[str, list[int]] = {name: [] for name in PEERS}
    for turn in range(kills):
        for name, peer in PEERS.items():
            if not peer.missing():
                at = draw.randint(steps, steps + steps // 20)
                lost[name].append(_lost(name, options.scratch / "loss" / f"{name}-{turn}", at))
    return [
        Figure(
            f"lost_by_{name}",
            f"steps lost on SIGKILL: {peer.title}" if name == OURS else f"  {peer.title}",
            float(statistics.median(lost[name])) if lost[name] else None,
            "",
            0.0 if name == OURS else None,
            ("each: " + ", ".join(map(str, lost[name]))) if lost[name] else "not installed",
        )
        for name, peer in PEERS.items()
    ]


def _lost(name: str, folder: Path, at: int) -> int:
    """Kill one trainer once it has logged `at` steps (a slow one: whatever it has after 10 s); return what it lost."""
    home = folder / "home"
    home.mkdir(parents=True)
    (folder / "count").write_bytes(bytes(COUNT.size))
    (folder / "run").mkdir()
    with (folder / "output").open("wb") as output:
        trainer = python(
            *("-m", "bench.peers_loss", name, str(folder)),
            cwd=folder,
            env=environment(HOME=str(home)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    wait_until(lambda: _count(folder) > 0 or trainer.poll() is not None, 60.0, 0.01)
    wait_until(lambda: _count(folder) >= at or trainer.poll() is not None, 10.0, 0.001)
    trainer.kill()
    trainer.wait()
    settled(folder)
    time.sleep(0.5)
    reading = ("-m", "bench.peers_loss", name, str(folder), "read")
    printed, _, _ = output_of(*reading, cwd=folder, env=environment(HOME=str(home)), stderr=subprocess.DEVNULL)
    logged = _count(folder)
    _end_group(trainer.pid)
    shutil.rmtree(folder, ignore_errors=True)
    return max(0, logged - int(printed.split()[-1]))


def _end_group(group: int) -> None:
    """End helper processes that the killed trainer has left behind: they are in the group we made for it."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _count(folder: Path) -> int:
    return int(COUNT.unpack((folder / "count").read_bytes())[0])


def main(arguments: list[str]) -> int:
    """Be the trainer: log for ever and count the calls that returned in a shared page; or read back and print."""
    peer, folder = PEERS[arguments[0]](), Path(arguments[1])
    if arguments[2:] == ["read"]:
        print(peer.read(folder / "run", KEYS[-1]))
        return 0
    data = rows(1000)
    with (folder / "count").open("r+b") as file, mmap.mmap(file.fileno(), COUNT.size) as page:
        peer.start(folder / "run")
        started, step = time.perf_counter(), 0
        while True:
            peer.log(step, data[step % 1000])
            step += 1
            COUNT.pack_into(page, 0, step)
            time.sleep(max(0.0, started + step * PACE - time.perf_counter()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
