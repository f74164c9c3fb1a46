"""Damage small files of every format at random for some seconds, and read them: `python -m tests.importers.fuzz 60`.

A second number is the seed; a name after it, the only format that is damaged.
Prints how many inputs were read, what was not an error of ours, the longest, and the memory.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from stepscope.core.errors import StepscopeError
from stepscope.importers import formats
from stepscope.importers.traces.chrome_trace import read_traces
from tests.importers.foreign import SAMPLES
from tests.importers.tracker_files import FOLDERS, folder

EVENT = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, "args": {"stream": 7}}
TRACE = json.dumps({"traceEvents": [EVENT] * 4, "schemaVersion": 1}).encode()
PIECES = [
    b"",
    b"\x00",
    b"\xff" * 9,
    b"1e999",
    b"-1",
    b"NaN",
    b"null",
    b"[" * 70,
    b'{"a":',
    b'"',
    b"\n",
    b"\r",
    b",",
    b"\x1f\x8b",
]


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return some bytes with one to four places changed; now and then packed, or twice as long."""
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        put = draw.choice([*PIECES, draw.randbytes(draw.randint(1, 8)), data[at : at + draw.randint(1, 40)]])
        data = data[:at] + put + data[at + draw.choice([0, 0, 1, len(put), draw.randint(0, 60)]) :]
    return gzip.compress(data) if draw.random() < 0.05 else data


def read(path: str, name: str, draw: random.Random) -> None:
    """Read a file in one of the ways that commands do."""
    if name == "trace":
        list(read_traces(path))
    else:
        formats.read(path, name if draw.random() < 0.5 else None)


def written(name: str, place: Path, draw: random.Random) -> tuple[bytes, Path]:
    """Write a damaged file, or a folder with one damaged file; return the damaged bytes, and what to read."""
    if name in FOLDERS and (name not in SAMPLES or draw.random() < 0.5):
        file = draw.choice(list(FOLDERS[name]))
        data = damaged(FOLDERS[name][file], draw)
        return data, folder({**FOLDERS[name], file: data}, place / name)
    data = damaged((TRACE if name == "trace" else SAMPLES[name]) * draw.choice([1, 1, 3]), draw)
    (place / "file").write_bytes(data)
    return data, place / "file"


def main(seconds: float, seed: int = 0, only: str = "") -> int:
    """Read damaged files; the exit code says whether any of them was not refused in our way."""
    draw, count, bad, longest = random.Random(seed), 0, 0, (0.0, "")
    names = [each for each in {**SAMPLES, **FOLDERS, "trace": TRACE} if only in {"", each}]
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place:
        while time.monotonic() < end:
            name = draw.choice(names)
            data, target = written(name, Path(place), draw)
            began = time.process_time()
            try:
                read(str(target), name, draw)
            except StepscopeError:
                pass
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                bad += 1
                print(f"{name}: {type(error).__name__}: {error}: {data[:2000]!r}")
            longest = max(longest, (time.process_time() - began, name))
            count += 1
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{count} inputs, {bad} uncaught, longest {longest[0]:.2f} s of a core ({longest[1]}), {memory} MiB")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, "".join(sys.argv[3:4])))
