"""Make the golden files of the format's current version: `python -m tests.golden.make` from the repository.

They are made once per version and never again: what was released must be read identically for ever. Ids, clocks and
values are fixed, so that a second making differs in nothing but what DuckDB's own version changes inside Parquet.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
import tempfile
from pathlib import Path

from stepscope.core import ring
from stepscope.recorder import declarations, hotpath
from stepscope.session import run as run_module
from stepscope.store.drain import Drain, OwnRows, Stream
from stepscope.store.layout import FORMAT_VERSION, RunFolder, Writer
from stepscope.store.seal import seal
from stepscope.store.states import NodeState, RankState
from tests.golden.reading import facts_of
from tests.recorder.rig import Rig, identity_of

HERE = Path(__file__).parent
WALL = 1_767_225_600_000_000_000
"""2026-01-01T00:00:00Z, in ns."""
BORN = 5_000_000_000_000
"""The monotonic clock at that moment, in ns."""
META = {
    "format": FORMAT_VERSION,
    "id": "20260101-000000-gold",
    "project": "golden",
    "name": "the golden run",
    "source": "new",
    "world_size": 2,
    "created": WALL // 1000,
    "config": {"lr": 0.001, "layers": [4, 8], "note": "µ"},
}


class Ticks:
    """A monotonic clock that goes on by a millisecond with each look."""

    def __init__(self):
        self.now = BORN

    def __call__(self):
        self.now += 1_000_000
        return self.now


def train(run, rank: int, rows: int) -> None:
    """Log what a training would, and what one should not."""
    odd = [0x7FF8_0000_0000_0001, 0xFFF8_0000_0000_00FF, 0x7FF0 << 48, 0xFFF0 << 48, 1 << 63, 1]
    for number in range(rows):
        with run.step(samples=32), run.phase("forward"):
            run.log({"loss": 100.0 / (number + 1) + rank, "learning_rate": 0.001})
        if number % 20 == 7:
            [value] = struct.unpack("<d", struct.pack("<Q", odd[number // 20 % len(odd)]))
            run.log({"odd": value, "µ/ü": -1.5}, step=number - 5)
    run.log({"note": "warm-up done", "cfg": {"depth": 3}})
    run.event("checkpoint", path="model.pt", time="noon")
    run.histogram("weights", [0.0, 0.25, 0.5, 1.0, float("nan")], bins=4)


def pairs(run) -> None:
    """Log more kinds of rows than there are schemas (few, for once): the last ones become pairs."""
    most, declarations.MAX_SCHEMAS = declarations.MAX_SCHEMAS, 3
    for number in range(9):
        run.log({f"m{number}": float(number), f"m{number % 5}/second": -1.0}, step=number)
    declarations.MAX_SCHEMAS = most


def record(folder: RunFolder, scratch: Path, *, sealed: bool) -> None:
    """Record two attempts: two ranks, one on a machine whose records carry checksums; then one rank with pairs."""
    ticks = Ticks()
    hotpath.monotonic_ns = run_module.time.monotonic_ns = ticks
    for attempt, ranks in enumerate(((0, 1), (0,))):
        writer = Writer("gold.abc123", attempt)
        drain = Drain(folder, writer, OwnRows(-1, ticks.now))
        born = {
            "attempt": attempt,
            "wall_ns": WALL + ticks.now - BORN,
            "monotonic_ns": ticks.now,
            "boot_id": "gold",
            "pid": 7,
        }
        states = {}
        for rank in ranks:
            rig = Rig(scratch, 4 << 20, "aarch64" if rank else "x86_64", identity=identity_of(scratch, rank, **born))
            pairs(rig.run) if attempt else train(rig.run, rank, 130)
            stream = Stream(rig.path, rank)
            while drain.once(stream, (WALL + ticks.now - BORN, ticks.now)).rows:
                pass
            state = ("failed", "ValueError: golden") if attempt == 0 and rank == 1 else ("finished", "")
            started, ended = born["wall_ns"] // 1000, (WALL + ticks.now - BORN) // 1000
            states[rank] = RankState(*state, 7, stream.expected, 0, 0, 129, started, ended)
        drain.own.add({"stepscope/rows_total": 1234.0}, ticks())
        drain.write_own((WALL + ticks.now - BORN + 3_600_000_000_000, ticks.now))  # the wall clock was set forward
        number = drain.rotate()
        NodeState("gold.abc123", attempt, 9, WALL // 1000, ticks.now, "gold", ended=True, ranks=states).save(folder)
        if sealed:
            seal(folder, writer, number)


def make_ring(target: Path) -> None:
    """Leave a ring as a dead trainer would, lapped once."""
    hotpath.monotonic_ns = Ticks()
    target.mkdir(parents=True)
    identity = identity_of(target, wall_ns=WALL, monotonic_ns=BORN, boot_id="gold", pid=7, run_path="/nowhere/run")
    rig = Rig(target, ring.HEADER_BYTES + ring.SEGMENTS * 256, identity=identity)
    for number in range(500):
        rig.run.log({"loss": 1.0 / (number + 1), "lr": 0.5})
    rig.run.log({"note": "last words"})
    rig.path.rename(target / "golden.ring")
    rig.schema.rename(target / "golden.schema")


def main() -> int:
    """Make a new version's files; refuse to touch those of a released one."""
    home = HERE / f"v{FORMAT_VERSION}"
    if home.exists():
        sys.stderr.write(f"cannot make {home}: it is there already; golden files are never made again\n")
        return 1
    for form in ("tail", "sealed"):
        folder = RunFolder(home / form)
        folder.make()
        folder.describe(META)
        with tempfile.TemporaryDirectory() as scratch:
            record(folder, Path(scratch), sealed=form == "sealed")
        for empty in [path for path in folder.path.iterdir() if path.is_dir() and not any(path.iterdir())]:
            shutil.rmtree(empty)
    make_ring(home / "ring")
    (home / "expected.json").write_text(json.dumps(facts_of(home), separators=(",", ":"), sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
