"""Recover the rows of dead processes from their rings, and delete the files and folders that they left behind."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core import ring
from stepscope.core.clock import Clock, boot_id, read_pair
from stepscope.core.endings import SOURCE_ENDED, end_by_error, end_of_source
from stepscope.core.events import is_users
from stepscope.core.places import RING_SUFFIX, SCHEMA_SUFFIX, SEAL_LOCK, WATCHER_LOCK, Places, other_shared_roots
from stepscope.core.records import NO_STEP, heads
from stepscope.store.drain import Drain, OwnRows, RingBusyError, Stream
from stepscope.store.layout import RunFolder, Writer, age_of, locked, node_name
from stepscope.store.states import NodeState, RankState, unseen_end

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from stepscope.store.drain import RingBatch

_ONE_AT_A_TIME = threading.Lock()
"""File locks do not separate threads of one process."""
STALE_DAYS = 7
GRACE_SECONDS = 3.0
"""Minimum age of a ring with a dead trainer and no consumer before it is salvaged."""
AWAIT_SECONDS = 20.0
"""How long a reader waits for rows that a watcher is still writing."""
_ENDED = frozenset((ring.STATE_FINISHED, ring.STATE_FAILED, ring.STATE_EXITED))
UNMADE_SECONDS = 600.0
"""Creating a ring takes milliseconds: one that is unfinished for this long was abandoned."""
IDLE_SECONDS = 60.0
"""Age of an empty folder after which no process can still be creating a ring in it, which takes milliseconds."""
ORPHAN_SECONDS = 600.0
"""The same for companion files of a ring that does not exist."""
LOCKS = (WATCHER_LOCK, SEAL_LOCK)


def salvage(
    places: Places,
    run_path: str | None = None,
    note: Callable[[str], None] = lambda _: None,
    except_for: Collection[Path] = (),
) -> int:
    """Move the rows of dead rings (of one run, or of all) into their runs; return the number of rings.

    `except_for` are rings that the caller drains itself. A ring with a living trainer, in any pid namespace, or with a
    consumer is left alone. A problem with one ring is reported through `note` and never raised.
    """
    if not _ONE_AT_A_TIME.acquire(timeout=10):  # a child forked meanwhile holds it forever
        return 0
    try:
        _sweep(places)
        sweep_folders(places, {path.parent.name for path in except_for})
        rings = [path for path in places.rings(run_path) if path not in except_for]
        if run_path is not None and not rings and places.of_run(run_path, places.disk).is_dir():
            _tidy(places, run_path)  # its watcher was killed at the last moment
        return sum(_salvage_ring(path, places, note) for path in rings)
    finally:
        _ONE_AT_A_TIME.release()


def _salvage_ring(path: Path, places: Places, note: Callable[[str], None]) -> bool:
    """Recover the rows of one ring if it is dead; return whether it was."""
    try:
        stream = Stream(path, 0)
    except RingBusyError:  # a watcher consumes it
        return False
    except (OSError, ValueError) as error:
        _drop_if_old(path)
        note(f"cannot salvage {path}: {error}; it is left as it is")
        return False
    try:
        if stream.writer_alive() or _is_young(stream):
            return False
        _move_rows(stream, places)
        _tidy(places, stream.identity.run_path)
    except (OSError, ValueError) as error:
        note(f"cannot salvage {path}: {error}; it is tried again next time")
        return False
    finally:
        stream.close()
    return True


def _is_young(stream: Stream) -> bool:
    """Return whether a ring is only moments old: its watcher, which can see how the trainer ended, is starting."""
    words = stream.reader.words()
    if words[ring.WORD_HEARTBEAT] or words[ring.WORD_STATE] in {ring.STATE_FINISHED, ring.STATE_FAILED}:
        return False  # the watcher came and went, or the trainer itself recorded how it ended
    age = (time.monotonic_ns() - stream.identity.monotonic_ns) / 1e9
    return stream.identity.boot_id == boot_id() and 0 <= age < GRACE_SECONDS


def _move_rows(stream: Stream, places: Places) -> None:
    identity = stream.identity
    folder = RunFolder(Path(identity.run_path))
    if not folder.path.is_dir() or not folder.is_home_of(identity.extra.get("created")):
        stream.remove()  # the run was deleted: its rows have no destination
        return
    folder.make()
    writer = Writer(node_name(places.disk, boot_id()), identity.attempt)
    drain = Drain(folder, writer, OwnRows(-1 - identity.node_rank, time.monotonic_ns()))
    pair = (identity.wall_ns, identity.monotonic_ns)
    ending = Ending()
    while ending.add(drain.once(stream, pair)):
        pass
    drain.rotate()
    end_rank(folder, writer, stream, ending)
    stream.remove()


def await_rows(places: Places, run_path: str, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Wait for rows of an ended run that are still on their way to its folder; return whether all arrived.

    Waits at most AWAIT_SECONDS, and only while the rings are being drained: after a burst `finish` returns earlier.
    """
    began = moved = time.monotonic()
    before = -1
    while (left := _undrained(places, run_path)) and time.monotonic() - began < AWAIT_SECONDS:
        if left != before:
            before, moved = left, time.monotonic()
        elif time.monotonic() - moved > GRACE_SECONDS:
            break
        sleep(0.01)
    return not left


def _undrained(places: Places, run_path: str) -> int:
    """Return how many bytes wait in the rings of trainers that have ended."""
    waiting = 0
    for path in places.rings(run_path):
        try:
            with path.open("rb") as file:
                words = struct.unpack(f"<{ring.WORDS}Q", file.read(ring.WORDS * 8))
        except (OSError, struct.error):  # deleted meanwhile, or not a ring
            continue
        if words[ring.WORD_STATE] in _ENDED and not words[ring.WORD_ENDED]:
            waiting += max(0, words[ring.WORD_HEAD] - words[ring.WORD_CURSOR])
    return waiting


@dataclass
class Ending:
    """What the last rows of a rank show about its end."""

    step: int | None = None
    moment: int | None = None
    """Monotonic time of the last row, in ns."""
    error: str = ""
    source: dict[str, Any] | None = None
    """The event with the end of a followed run."""

    def add(self, batch: RingBatch) -> bool:
        """Add a drained batch; return whether it had rows."""
        if batch.pieces:
            *_, self.moment, step = heads(batch.pieces[-1])[-1]
            self.step = self.step if step == NO_STEP else step
        for event in batch.events:
            if event.get("kind") == "exception" and not is_users(event):
                self.error = str(event.get("error", ""))
            elif event.get("kind") == SOURCE_ENDED and not is_users(event):
                self.source = event
        return bool(batch.rows)


def end_rank(folder: RunFolder, writer: Writer, stream: Stream, ending: Ending) -> None:
    """Record how the rank behind a dead ring ended, as far as the ring shows it."""
    path = folder.node_file(writer)
    try:
        node = NodeState.load(path)
    except (OSError, ValueError, TypeError):
        node = NodeState(writer.node, writer.attempt)
    words = stream.reader.words()
    before = node.ranks.get(stream.identity.rank, RankState())
    state = ring.STATE_NAMES.get(words[ring.WORD_STATE], "running")
    inferred = True
    if stream.identity.extra.get(ring.FOLLOWED) and before.state == "running":
        state, cause, is_certain = end_of_source(ending.source)
        inferred = not is_certain
    elif before.state != "running":  # its watcher saw the end, but could not store the rows
        state, cause = before.state, before.cause
    else:
        state, cause = unseen_end(before) if state == "running" else (state, ending.error or before.cause)
        state, cause = end_by_error(cause) if state == "failed" else (state, cause)
    now = read_pair(Clock())
    identity = stream.identity
    last = None if ending.moment is None else (identity.wall_ns + ending.moment - identity.monotonic_ns) // 1000
    node.ranks[stream.identity.rank] = RankState(
        state=state,
        cause=cause,
        pid=stream.identity.pid,
        rows=stream.expected - stream.lost,
        lost=stream.lost,
        refused=words[ring.WORD_REFUSED],
        step=before.step if ending.step is None else ending.step,
        started=stream.identity.wall_ns // 1000,
        ended=before.ended or last or node.time or now.wall_ns // 1000,
        inferred=before.inferred if before.state != "running" else inferred,
        memory=before.memory,
        memory_limit=before.memory_limit,
    )
    node.time, node.monotonic_ns, node.boot_id = now.wall_ns // 1000, now.monotonic_ns, boot_id()
    node.ended = all(rank.state != "running" for rank in node.ranks.values())
    node.save(folder)


def _tidy(places: Places, run_path: str) -> None:
    """Delete the locks and folders of a run that has neither ring nor watcher."""
    with contextlib.ExitStack() as stack:
        try:
            with contextlib.suppress(FileNotFoundError):  # there is no such folder
                stack.enter_context(locked(places.of_run(run_path, places.disk) / WATCHER_LOCK, os.O_CREAT))
        except OSError:
            return  # its watcher is alive and does this itself, or the disk is full or read-only: a later sweep does it
        if not places.rings(run_path):
            places.remove(run_path)


def _sweep(places: Places) -> None:
    """Delete files of processes that were killed while creating their ring."""
    for root in places.roots():
        for path in root.glob(f"*/.*{RING_SUFFIX}.new"):
            with contextlib.suppress(FileNotFoundError):  # another process sweeps too
                if time.time() - path.stat().st_mtime > UNMADE_SECONDS:
                    path.unlink()
                    path.with_name(path.name[1:].removesuffix(f"{RING_SUFFIX}.new") + SCHEMA_SUFFIX).unlink()


def _drop_if_old(path: Path) -> None:
    """Delete an unreadable ring once it is a week old and no process, perhaps of a newer version, holds it."""
    if age_of(path, time.time()) < STALE_DAYS * 86400:
        return
    with contextlib.suppress(OSError), locked(path):  # held by a process, or deleted meanwhile
        path.unlink()
        path.with_suffix(SCHEMA_SUFFIX).unlink(missing_ok=True)


def sweep_folders(places: Places, except_for: Collection[str] = (), now: float | None = None) -> None:
    """Delete the folders of runs that have neither ring nor watcher, and empty roots in shared memory.

    A process that is creating its ring in a folder just as it is deleted creates the folder again. `except_for` are the
    names of folders whose locks this process holds: opening them would release the locks (POSIX).
    """
    now = time.time() if now is None else now
    for root in places.roots():
        for name in _names(root):
            if name not in except_for:
                _sweep_run(root / name, now)
    for root in [] if places.shared is None else other_shared_roots(places.shared):
        for name in _names(root):
            _sweep_run(root / name, now)
        with contextlib.suppress(OSError):  # not empty: it is in use
            if _is_ours(root) and now - root.lstat().st_mtime > IDLE_SECONDS:
                root.rmdir()


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:  # deleted meanwhile, or not a folder
        return []


def _sweep_run(folder: Path, now: float) -> None:
    """Delete the folder of one run if nothing in it is still needed."""
    if not _is_ours(folder):
        return
    names = _names(folder)
    if any(RING_SUFFIX in name for name in names):
        return  # its trainer is alive, or its rows will be salvaged
    try:
        is_old = all(now - (folder / name).lstat().st_mtime > ORPHAN_SECONDS for name in names if name not in LOCKS)
        if is_old and now - folder.lstat().st_mtime > IDLE_SECONDS:
            _remove_run(folder, names)
    except OSError:
        return  # another process sweeps too, or a new rank has joined


def _remove_run(folder: Path, names: Collection[str]) -> None:
    with contextlib.ExitStack() as held:
        for name in LOCKS:
            if name in names:
                held.enter_context(locked(folder / name))  # raises while its watcher or sealer is alive
        for name in names:
            (folder / name).unlink()
        folder.rmdir()


def _is_ours(folder: Path) -> bool:
    """Return whether this is a real folder owned by this user."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
