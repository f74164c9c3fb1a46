"""Live trainings whose sinks fail, or whose sender is killed: afterwards every sink must have every row once.

`python -m bench.sink_storm FOLDER SINKS` is the training: 200 rows a second until the file `stop` is there.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.figure import Figure
from bench.processes import SENDER, find, kill, python, wait_until
from bench.sink_contents import COLUMNS, Compared, recorded
from bench.sink_proxy import MLFLOW_SHARE, SHARE, FaultyProxy, drawn

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from bench.sink_contents import Target

SINKS = ("otlp", "mlflow", "prometheus")
TWICE = {"otlp": "refused points sent again"}
"""What must not be there, where that is not a point that is there twice."""
RATE = 200
"""Rows per second."""
INTERVAL = 0.3
"""Seconds between two batches: more calls than by default, so that faults and kills meet more of them."""
START_SECONDS, STORM_SECONDS, END_SECONDS = 60.0, 600.0, 180.0
"""How long a loaded machine may take to start a training, to use up all faults, and to have everything sent."""
LIMIT = 60.0
"""Seconds after which every sink has everything."""
LIVES = 1.5
"""Seconds that a sender lives at most."""


@dataclass(frozen=True)
class Aftermath:
    """What the sinks had in the end."""

    rows: int
    logged: int
    """Rows that the training says to have logged."""
    seconds: float | None
    """From the end of training and faults until every sink had everything; None: never."""
    compared: tuple[Compared, ...]
    note: str = ""

    def figures(self, key: str, what: str) -> list[Figure]:
        """Return the figures of each sink, and the delay."""
        found = []
        lost = max(0, self.logged - self.rows)
        compared = {one.sink: one for one in self.compared}
        for sink in SINKS:
            titles = f"{what}: points missing in {sink}", f"  {TWICE.get(sink, 'points twice or invented')}, {sink}"
            keys = f"{key}_missing_{sink}", f"{key}_twice_{sink}"
            if sink not in compared:
                both = zip(keys, titles, strict=True)
                found += [Figure(one, title, None, "", 0.0, f"{sink} not installed") for one, title in both]
                continue
            one = compared[sink]
            beside = f"of {self.rows * len(COLUMNS)}; {one.note}"
            found.append(Figure(keys[0], titles[0], float(one.missing + lost), "", 0.0, beside))
            found.append(Figure(keys[1], titles[1], float(one.extra), "", 0.0))
        seconds = END_SECONDS if self.seconds is None else self.seconds
        title = f"{what}: from the end until every sink has all"
        return [*found, Figure(f"{key}_seconds", title, seconds, "s", LIMIT, self.note)]


def storm(targets: Sequence[Target], folder: Path, faults: int, seed: int) -> Aftermath:
    """Train while every sink has its share of the faults; heal, end, and compare."""
    plan = drawn(seed, faults, [one.sink for one in targets])
    print(f"storm: {faults} faults of seed {seed}", file=sys.stderr, flush=True)
    proxies = [
        FaultyProxy(one.port, plan[one.sink], seed + number, MLFLOW_SHARE if one.sink == "mlflow" else SHARE)
        for number, one in enumerate(targets)
    ]
    sinks = _sinks(targets, [proxy.port for proxy in proxies])
    try:
        with training(folder, sinks) as (trainer, run):
            if not wait_until(lambda: all(proxy.is_healed for proxy in proxies), STORM_SECONDS, 0.05):
                left = {one.sink: _told(run) for one in targets}
                raise RuntimeError(f"not all faults were met: {left}")
            stop(folder, trainer)
        over = max(time.monotonic(), *(proxy.healed for proxy in proxies))
        done = sum((proxy.done for proxy in proxies[1:]), proxies[0].done)
        note = f"seed {seed}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(done.items()))
        return _aftermath(targets, folder, run, over, note)
    finally:
        for proxy in proxies:
            proxy.close()


def kills(targets: Sequence[Target], folder: Path, count: int, seed: int) -> Aftermath:
    """Train while the sender is killed again and again; end, and compare."""
    from stepscope.store.layout import RunFolder
    from stepscope.store.states import read_nodes
    from stepscope.watcher.sender_brief import SenderBrief
    from stepscope.watcher.sending import start_sender

    draw = random.Random(seed)
    settings = {"exporters.sinks": _sinks(targets, [one.port for one in targets])}
    with training(folder, []) as (trainer, run):
        wait_until(lambda: bool(read_nodes(RunFolder(run))[0]), START_SECONDS)
        brief = SenderBrief(str(run), read_nodes(RunFolder(run))[0][0].node, settings)
        states = []
        for _ in range(count):
            sender = start_sender(brief)
            time.sleep(draw.uniform(0.1, LIVES))
            sender.kill()
            sender.wait()
            states.append(sum(state.sent_rows for state in _states(run)))
        sender = start_sender(brief)
        stop(folder, trainer)
    moved = sum(one > other for other, one in zip([0, *states], states, strict=False))
    try:
        found = _aftermath(targets, folder, run, time.monotonic(), f"{count} kills, {moved} after rows were confirmed")
    finally:
        sender.kill()
        sender.wait()
    return found


def _sinks(targets: Sequence[Target], ports: Sequence[int]) -> list[dict[str, Any]]:
    return [{"url": one.url.format(port=port), "interval": INTERVAL} for one, port in zip(targets, ports, strict=True)]


@contextlib.contextmanager
def training(folder: Path, sinks: list[dict[str, Any]]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a training; yield its process and the folder of its run."""
    folder.mkdir(parents=True)
    run = folder / folder.name / f"{folder.name}-{time.time_ns()}"
    with (folder / "stderr").open("wb") as errors:
        trainer = python("-m", "bench.sink_storm", str(run), str(folder), json.dumps(sinks), stderr=errors)
    try:
        if not wait_until(lambda: (run / "run.json").exists() or trainer.poll() is not None, START_SECONDS):
            raise RuntimeError(f"no training: {(folder / 'stderr').read_text()[-500:]}")
        yield trainer, run
    finally:
        trainer.kill()
        trainer.wait()


def stop(folder: Path, trainer: subprocess.Popen[bytes]) -> None:
    """Let the training end."""
    (folder / "stop").touch()
    trainer.wait(START_SECONDS)


def _states(run: Path) -> list[Any]:
    from stepscope.store.layout import RunFolder
    from stepscope.store.sinks import read_sinks

    return read_sinks(RunFolder(run))


def _told(run: Path) -> list[tuple[str, str, str]]:
    return [(state.kind, state.state, state.why) for state in _states(run)]


def _aftermath(targets: Sequence[Target], folder: Path, run: Path, over: float, note: str) -> Aftermath:
    """Wait until the sender says that every sink has everything, and compare."""
    from stepscope.store.sinks import DONE

    def is_done() -> bool:
        states = _states(run)
        return len(states) == len(targets) and all(state.state == DONE for state in states)

    is_over = wait_until(is_done, END_SECONDS, 0.05)
    seconds = time.monotonic() - over
    if not is_over:
        note = f"{note}; not done: {[one for one in _told(run) if one[1] != DONE]}"
    for pid in find(SENDER, run):
        if not is_over:
            kill(pid)
    points, states = recorded(run), {state.kind: state for state in _states(run)}
    compared = tuple(one.compared(points, run, states[one.sink]) for one in targets)
    logged = int((folder / "logged").read_text(encoding="ascii"))
    return Aftermath(len(points) // len(COLUMNS), logged, seconds if is_over else None, compared, note)


def main(arguments: list[str]) -> int:
    """Be the training."""
    import stepscope

    run_folder, folder, sinks = Path(arguments[0]), Path(arguments[1]), json.loads(arguments[2])
    often = {"seal_bytes": 256 << 10, "seal_interval": 15.0}
    run = stepscope.init(
        project=run_folder.parent.name,
        dir=run_folder.parent.parent,
        run_id=run_folder.name,
        store=often,
        samplers={"enabled": False},
        exporters={"sinks": sinks},
    )
    draw, stop_file, started, step = random.Random(0), folder / "stop", time.monotonic(), 0
    while not stop_file.exists():
        value = draw.uniform(-1e6, 1e6)
        run.log(dict(zip(COLUMNS, (value, -value, float(step)), strict=True)), step=step)
        step += 1
        time.sleep(max(0.0, started + step / RATE - time.monotonic()))
    run.finish()
    (folder / "logged").write_text(str(step), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
