"""Read many damaged inputs in confined children: `python -m tests.importers.fuzz_children --format swanlab`.

Prints a table; the exit code says whether an input crashed its reader, took too long or too much, or was refused by
another error than ours. An input is made from its number alone: `--first 4711 --inputs 1` makes that one again.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

from stepscope.core.errors import StepscopeError
from stepscope.importers.confinement import ChildLimits, confined
from tests.importers import fuzz
from tests.importers.foreign import (
    SAMPLES,
    event,
    field,
    history,
    scalar,
    swanlab_file,
    swanlab_scalar,
    tfrecord,
    wandb_file,
)
from tests.importers.tracker_files import FOLDERS

MOST_SECONDS, MOST_MIB = 5.0, 512
"""Limits of one input: CPU seconds, and memory of the child that reads it."""
ALL = tuple({**SAMPLES, **FOLDERS})
"""Names of the formats."""
BATCH = 500
"""Inputs of one child."""


def event_records(*records: bytes) -> bytes:
    """Return an event file of records as they are."""
    return b"".join(map(tfrecord, records))


ROW = {"loss": 0.5, "_step": 3, "_timestamp": 10.0, "deep": {"x": 1}, "text": "t"}
TYPED = b"".join(
    field(1, field(2, "x") + field(16, "7") + field(number, value)) for number, value in ((5, 14), (6, 7.0))
)
FRAMED = {
    "tfevents": (event_records, [event(step, 10.0, scalar("loss", 0.5)) for step in range(12)]),
    "wandb": (wandb_file, [history(ROW, step=4), field(2, TYPED + field(2, field(1, 9))), field(18, field(1, 1))] * 2),
    "swanlab": (
        swanlab_file,
        [swanlab_scalar("loss", step, 10.5, 0.5) for step in range(4)] + [field(11, field(1, 1))],
    ),
}
"""Formats with checksums: what frames records, and records, so that damage gets past the checksums."""


def written(name: str, place: Path, draw: random.Random) -> Path:
    """Write a damaged input; return what to read."""
    if name not in FRAMED or draw.random() < 0.5:
        return fuzz.written(name, place, draw)[1]
    frame, records = FRAMED[name]
    chosen = [fuzz.damaged(record, draw) if draw.random() < 0.5 else record for record in records]
    (place / "file").write_bytes(frame(*chosen))
    return place / "file"


def read_batch(name: str, first: int, count: int) -> dict[str, object]:
    """Read some inputs; return how many ended how, the longest in CPU seconds, and those that need a look."""
    ends: Counter[str] = Counter()
    longest, odd = 0.0, []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # a forked child starts with its parent's memory
    with tempfile.TemporaryDirectory() as place:
        for number in range(first, first + count):
            draw = random.Random(f"{name} {number}")
            target = written(name, Path(place), draw)
            began = time.process_time()
            try:
                fuzz.read(str(target), name, draw)
                ends["read"] += 1
            except StepscopeError:
                ends["refused"] += 1
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                odd.append(f"{number}: {type(error).__name__}: {error}")
            seconds = time.process_time() - began
            longest = max(longest, seconds)
            if seconds > MOST_SECONDS:
                odd.append(f"{number}: took {seconds:.1f} s")
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    if mib > MOST_MIB:
        odd.append(f"{first} to {first + count - 1}: took {mib} MiB")
    return {**ends, "longest": longest, "mib": mib, "odd": odd}


def fuzz_format(name: str, first: int, count: int) -> tuple[str, list[str]]:
    """Read inputs of a format in children; return a line of the table, and what went wrong."""
    ends: Counter[str] = Counter()
    longest, mib, odd = 0.0, 0, []
    for begin in range(first, first + count, BATCH):
        size = min(BATCH, first + count - begin)

        def work(begin: int, size: int) -> list[bytes]:
            return [json.dumps(read_batch(name, begin, size)).encode()]

        try:
            told = json.loads(confined("fuzz", partial(work, begin, size), ChildLimits()))
        except StepscopeError as error:
            odd.append(f"{begin} to {begin + size - 1}: {error}")
            continue
        ends.update({key: told.get(key, 0) for key in ("read", "refused")})
        longest, mib = max(longest, told["longest"]), max(mib, told["mib"])
        odd += told["odd"]
    line = f"{name:16}{count:9}{ends['read']:9}{ends['refused']:9}{len(odd):7}{longest:11.2f} s{mib:8} MiB"
    return line, odd


def main(arguments: list[str]) -> int:
    """Print a line for each format, and each input that went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.importers.fuzz_children")
    parser.add_argument("--inputs", type=int, default=1000, help="number of inputs of each format")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--format", action="append", help="a format; all by default")
    given = parser.parse_args(arguments)
    print(f"{'format':16}{'inputs':>9}{'read':>9}{'refused':>9}{'wrong':>7}{'longest':>13}{'memory':>12}")
    wrong = 0
    for name in given.format or ALL:
        line, odd = fuzz_format(name, given.first, given.inputs)
        print(line, *odd[:20], sep="\n  ", flush=True)
        wrong += len(odd)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
