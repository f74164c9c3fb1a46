"""Threads that read runs: few, each with its own DuckDB connection; equal reads share one result, others are queued.

The event loop never touches a file of a run. A hanging disk holds up the reads of its own run only: a run never gets
all threads, and a thread that does not return is replaced while reads of its run are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from stepscope.web.failures import DiskStalledError, TooBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import duckdb

    Work = Callable[[duckdb.DuckDBPyConnection], Any]

MEMORY = "256MB"
"""Memory of DuckDB per thread."""
INTERRUPT_SECONDS = 0.05
"""Seconds between two interrupts of a cancelled read."""
STALL_SECONDS = 5.0
"""Seconds after which a thread that does not return from a cancelled read is replaced."""
MAX_STALLED = 16
"""Threads that may be replaced."""
CALM_SECONDS = 0.15
"""Seconds without another read before a long one begins: a page's first requests follow each other."""
PATIENCE_SECONDS = 3.0
"""Most seconds that a long read waits for that."""
LOOK_SECONDS = 0.03


class _ThreadState(threading.local):
    connection: duckdb.DuckDBPyConnection | None = None


class PendingRead:
    """One read in progress; cancelling it interrupts DuckDB."""

    def __init__(self) -> None:
        """Begin without a connection."""
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self.cancelled = False

    def cancel(self) -> bool:
        """Interrupt the read; return whether it is still in progress: then call this again.

        One interrupt ends one query of DuckDB, and has no effect between two queries.
        """
        with self._lock:
            self.cancelled = True
            if self._connection is not None:
                self._connection.interrupt()
            return self._connection is not None

    @contextlib.contextmanager
    def using(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Let `cancel` interrupt this connection inside the block."""
        with self._lock:
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None


class ReaderPool:
    """The threads, and the reads that wait for them."""

    def __init__(self, threads: int = 3, waiting: int = 64) -> None:
        """Start no thread yet; at most `waiting` reads may be in progress or in the queue."""
        self._pool = ThreadPoolExecutor(threads + MAX_STALLED, "stepscope-reader")
        self._free = asyncio.Semaphore(threads)
        self._threads_per_run = max(1, threads - 1)
        self._run_slots: dict[str, asyncio.Semaphore] = {}
        self._thread = _ThreadState()
        self._max_waiting = waiting
        self._shared: dict[Hashable, asyncio.Future[Any]] = {}
        self._waiters: Counter[Hashable] = Counter()
        self._reads: set[PendingRead] = set()
        self._cancelling: set[asyncio.Future[None]] = set()
        self._short = 0
        """Reads in progress that do not wait for others."""
        self._calm_since = float("-inf")
        self.stalled: Counter[str] = Counter()
        self.submitted = self.refused = self.cancelled = 0

    @property
    def in_progress(self) -> int:
        """Reads in progress or in the queue."""
        return len(self._reads)

    def connection(self) -> duckdb.DuckDBPyConnection:
        """Return the connection of the calling thread."""
        if self._thread.connection is None:
            from stepscope.store.parquet import connect

            self._thread.connection = connect(1, MEMORY)
        return self._thread.connection

    async def read(self, key: Hashable, work: Work, run: str = "", *, is_long: bool = False) -> Any:
        """Return what `work` returns in one of the threads; concurrent reads with the same key share one result.

        A read that no caller waits for any more is interrupted. Reads of one run never take all threads. A long one
        begins when the others are done: all threads share one interpreter.

        Raises TooBusyError if too many reads are waiting, DiskStalledError if an earlier read of this run still waits
        for its disk.
        """
        future = self._shared.get(key)
        if future is None:
            if self.stalled[run] or self.in_progress >= self._max_waiting:
                self.refused += 1
                raise DiskStalledError if self.stalled[run] else TooBusyError
            future = asyncio.ensure_future(self._run(key, work, run, is_long=is_long))
            self._shared[key] = future
            future.add_done_callback(lambda _: self._shared.pop(key, None))
        self._waiters[key] += 1
        try:
            return await asyncio.shield(future)
        finally:
            self._waiters[key] -= 1
            if not self._waiters[key]:
                del self._waiters[key]
                if not future.done():
                    self.cancelled += 1
                    future.cancel()

    async def _run(self, key: Hashable, work: Work, run: str, *, is_long: bool) -> Any:
        read = PendingRead()
        self._reads.add(read)
        self.submitted += 1
        self._short += not is_long

        def call() -> Any:
            if read.cancelled:
                return None
            connection = self.connection()
            with read.using(connection):
                return work(connection)

        run_slots = self._run_slots.setdefault(run, asyncio.Semaphore(self._threads_per_run))
        try:
            if is_long:
                await self._calm()
            async with contextlib.AsyncExitStack() as slots:
                for free in (run_slots, self._free):
                    await slots.enter_async_context(free)
                try:
                    return await asyncio.get_running_loop().run_in_executor(self._pool, call)
                except asyncio.CancelledError:
                    cancelling = asyncio.ensure_future(self._interrupt(read, run, slots.pop_all()))
                    self._cancelling.add(cancelling)
                    cancelling.add_done_callback(self._cancelling.discard)
                    raise
        finally:
            self._shared.pop(key, None)
            self._reads.discard(read)
            self._short -= not is_long
            self._calm_since = time.monotonic()
            if not self._reads:
                self._run_slots.clear()

    async def _calm(self) -> None:
        """Wait until no short read is in progress, none has just ended and none comes, for a while at most."""
        began = time.monotonic()
        while (now := time.monotonic()) - began < PATIENCE_SECONDS:
            if not self._short and now - max(began, self._calm_since) >= CALM_SECONDS:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _interrupt(self, read: PendingRead, run: str, slots: contextlib.AsyncExitStack) -> None:
        """Interrupt a read until its thread returns, then free its slots; replace a thread that takes too long."""
        deadline, stalled = time.monotonic() + STALL_SECONDS, False
        while read.cancel():
            if not stalled and time.monotonic() >= deadline and self.stalled.total() < MAX_STALLED:
                stalled = True
                self.stalled[run] += 1
                await slots.aclose()
            await asyncio.sleep(INTERRUPT_SECONDS)
        if stalled:
            self.stalled[run] -= 1
        await slots.aclose()  # nothing is left to free if the thread was replaced

    def close(self) -> None:
        """Interrupt all reads and let the threads end."""
        for read in list(self._reads):
            read.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
