"""Seal tails into Parquet. Runs as a short-lived child of the watcher; only the holder of the run's lock starts it."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.places import SEAL_LOCK, find_places, private_directory
from stepscope.store.compact import compact
from stepscope.store.decode import Decoded, decode_tail
from stepscope.store.layout import FileSpan, RunFolder, Writer, locked
from stepscope.store.sealed import open_sealed, write_sealed

if TYPE_CHECKING:
    from collections.abc import Sequence

NICE = 9
"""Added to the watcher's own 10."""


def main(arguments: Sequence[str]) -> int:
    """Seal, then compact. Arguments: the run's folder, node, attempt, number of the last tail to seal."""
    os.nice(NICE)
    os.umask(0o077)
    folder, writer = RunFolder(Path(arguments[0])), Writer(arguments[1], int(arguments[2]))
    places = find_places()
    lock = private_directory(places.of_run(str(folder.path), places.disk)) / SEAL_LOCK
    # A sealer whose watcher was killed may still be working on the same tails.
    with locked(lock, os.O_CREAT, fcntl.LOCK_EX):
        seal(folder, writer, int(arguments[3]))
        try:
            compact(folder, writer)
        except OSError as error:  # the tails are sealed: a caller that waits for that need not wait for the compaction
            sys.stderr.write(f"cannot merge sealed files of {folder.path}: {error}; they stay, and are merged later\n")
    return 0


def seal(folder: RunFolder, writer: Writer, last: int) -> list[Path]:
    """Seal the tails of `writer` up to number `last`, each as a unit, and delete them; return the new units.

    Raises OSError if a unit could not be written; its tail still exists.
    """
    units = [unit for unit in folder.units() if unit.writer == writer]
    seen = last_sequences(units)
    made = []
    for tail in folder.all_tails():
        if tail.writer != writer or tail.last > last:
            continue
        if not any(unit.covers(tail) for unit in units):
            decoded = decode_tail(tail.path.read_bytes(), seen)
            seen = decoded.last_seq
            if decoded.records or decoded.problems(tail.path.name):
                made.append(_write(folder, tail, decoded))
        tail.path.unlink(missing_ok=True)
    return made


def _write(folder: RunFolder, tail: FileSpan, decoded: Decoded) -> Path:
    folder.restore()  # the subfolders may have been deleted
    return write_sealed(
        folder.path / "metrics",
        folder.unit_stem(tail.writer, tail.first, tail.last),
        decoded.points,
        last_seq={str(rank): sequence for rank, sequence in decoded.last_seq.items()},
        problems=decoded.problems(tail.path.name),
    )


def last_sequences(units: Sequence[FileSpan]) -> dict[int, int]:
    """Return the highest sequence of each rank in the units of one writer."""
    found: dict[int, int] = {}
    for unit in units:
        for rank, sequence in open_sealed(unit.path).last_seq.items():
            found[int(rank)] = max(found.get(int(rank), -1), sequence)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
