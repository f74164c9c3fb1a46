"""The files in which W&B keeps a run (`run-<id>.wandb`): which of our rows they hold, and which were not uploaded."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from stepscope.exporters.sinks.wandb.terms import ROW
from stepscope.importers.binary.level_log import BLOCK, LevelLog
from stepscope.importers.binary.wandb import HISTORY, VERSION
from stepscope.importers.binary.wandb_history import item
from stepscope.importers.binary.wire import fields

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TAIL = 8 << 20
"""Bytes at the end of a file that can hold rows which the sender may send again: more than a batch takes."""
MOST_BYTES = 64 << 20
"""Bytes of all files together that are read for this."""
LOCK = "stepscope.lock"
"""Is locked in the folder of a W&B run while a helper writes to it."""
STATE = "stepscope.state"
"""Holds the state of the run that W&B has."""


class RunLog:
    """The records of one file, as it grows."""

    def __init__(self, path: Path, tail: int = 0) -> None:
        """Read from the start, or only about `tail` bytes at the end."""
        self._path = path
        size = path.stat().st_size if tail else 0
        block = max(0, size - tail) // BLOCK
        self._at = block * BLOCK
        # What is damaged or cut is not there for us: its rows are sent again.
        self._log = LevelLog(VERSION, lambda _: None, block)

    def records(self) -> Iterator[bytes]:
        """Yield the records that were written since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            while portion := file.read(1 << 20):
                self._at += len(portion)
                yield from self._log.whole(portion)


def row_of(record: bytes) -> str | None:
    """Return the id of the row that a record holds; None if it holds none of ours."""
    if ROW.encode() not in record:
        return None
    try:
        for field in fields(record):
            if field.number == HISTORY:
                found = (item(part.data) for part in fields(field.data) if part.number == 1)
                return next((str(value) for name, value in found if name == ROW), None)
    except ValueError:  # damaged: as good as not there
        pass
    return None


def rows_at_end(paths: list[Path]) -> set[str]:
    """Return the ids of rows at the end of some files, oldest first: those that the sender may send again."""
    found: set[str] = set()
    left = MOST_BYTES
    for path in reversed(paths):
        taken = min(TAIL, left)
        if taken <= 0:
            break
        left -= min(taken, path.stat().st_size)
        found.update(one for record in RunLog(path, taken).records() if (one := row_of(record)) is not None)
    return found


def files_of(folder: Path, run_id: str) -> list[Path]:
    """Return W&B's files of a run in the folder `wandb`, oldest first."""
    found = [path for path in folder.glob("*run-*/*.wandb") if path.name == f"run-{run_id}.wandb"]
    return sorted(found, key=lambda path: path.parent.name.removeprefix("offline-"))


def mark_of(path: Path) -> Path:
    """Return the file beside a W&B file that says, to W&B too, that all of it was uploaded."""
    return path.with_name(f"{path.name}.synced")


def not_uploaded(paths: list[Path]) -> list[Path]:
    """Return the files of online runs with rows that were perhaps not uploaded, and that nobody writes to."""
    return [
        path
        for path in paths
        if not path.parent.name.startswith("offline-")
        and not mark_of(path).exists()
        and any(row_of(record) for record in RunLog(path).records())
        and not _is_locked(path.parent)
    ]


def keep_state(path: Path, state: str) -> None:
    """Note the state of the run that W&B has, for a helper that comes after us."""
    (path.parent / STATE).write_text(state, encoding="utf-8")


def state_in(paths: list[Path]) -> str:
    """Return the state of the run that W&B has, empty if unknown."""
    for path in reversed(paths):
        with contextlib.suppress(OSError, ValueError):  # that helper was killed before it noted one
            return (path.parent / STATE).read_text(encoding="utf-8")
    return ""


def lock(folder: Path) -> int:
    """Say that this process writes to the folder of a W&B run, until it ends; return the open file."""
    number = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(OSError):  # a file system without locks: there nothing is uploaded again
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return number


def _is_locked(folder: Path) -> bool:
    try:
        number = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False  # its helper was killed within W&B's start
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(number)
    return False
