"""Threads that read runs: few, each with its own DuckDB connection, equal questions asked once, the rest in a queue.

The event loop never touches a file of a run. A hanging disk holds up the questions about its own run: one run never
takes all threads, and a thread that does not come back is replaced, while its run is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import duckdb

MEMORY = "256MB"
"""What DuckDB may take in each thread."""
AGAIN = 0.05
"""Seconds between two interruptions of a question that was given up."""
LEAVE = 5.0
"""Seconds after which a thread that does not come back from a question that was given up is replaced."""
MOST_HELD = 16
"""Threads that are replaced at most."""


class BusyError(Exception):
    """So many questions are waiting that another one is refused."""


class HeldUpError(Exception):
    """The disk of this run does not answer."""


class _Seat(threading.local):
    """What belongs to one thread."""

    connection: duckdb.DuckDBPyConnection | None = None


class Question:
    """One question under way: it can be given up, which interrupts DuckDB."""

    def __init__(self) -> None:
        """Begin with nobody reading."""
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self.given_up = False

    def give_up(self) -> bool:
        """Stop reading, for nobody waits any more; return whether somebody still reads: then call it again.

        One interruption ends one query of DuckDB, and none if it comes between two.
        """
        with self._lock:
            self.given_up = True
            if self._connection is not None:
                self._connection.interrupt()
            return self._connection is not None

    @contextlib.contextmanager
    def reading(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Let `give_up` interrupt this connection meanwhile."""
        with self._lock:
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None


class Readers:
    """The threads, and the questions that wait for them."""

    def __init__(self, threads: int = 3, waiting: int = 64) -> None:
        """Start with no thread; `waiting` questions may be under way or in the queue."""
        self._pool = ThreadPoolExecutor(threads + MOST_HELD, "stepscope-reader")
        self._free = asyncio.Semaphore(threads)
        self._share = max(1, threads - 1)
        self._shares: dict[str, asyncio.Semaphore] = {}
        self.held: Counter[str] = Counter()
        self._seat = _Seat()
        self._most = waiting
        self._shared: dict[Hashable, asyncio.Future[Any]] = {}
        self._waiters: dict[Hashable, int] = {}
        self._questions: set[Question] = set()
        self._giving_up: set[asyncio.Future[None]] = set()
        self.under_way = 0
        self.asked = 0
        self.refused = 0
        self.cancelled = 0

    def connection(self) -> duckdb.DuckDBPyConnection:
        """Return the connection of the thread that calls."""
        if self._seat.connection is None:
            from stepscope.store.sealed import reading_connection

            self._seat.connection = reading_connection(1, MEMORY)
        return self._seat.connection

    async def ask(self, key: Hashable, how: Callable[[duckdb.DuckDBPyConnection], Any], run: str = "") -> Any:
        """Return what `how` returns in one of the threads; who asks the same meanwhile gets the same answer.

        A question that nobody waits for any more is interrupted. `run` is what it is about: questions about one run
        never take all threads.

        Raises:
            BusyError: too many are waiting.
            HeldUpError: an earlier question about this run still waits for its disk.
        """
        future = self._shared.get(key)
        if future is None:
            if self.held[run]:
                self.refused += 1
                raise HeldUpError
            if self.under_way >= self._most:
                self.refused += 1
                raise BusyError
            future = asyncio.ensure_future(self._run(key, how, run))
            self._shared[key] = future
            future.add_done_callback(lambda _: self._shared.pop(key, None))
        self._waiters[key] = self._waiters.get(key, 0) + 1
        try:
            return await asyncio.shield(future)
        finally:
            self._waiters[key] -= 1
            if not self._waiters[key]:
                del self._waiters[key]
                if not future.done():
                    self.cancelled += 1
                    future.cancel()

    async def _run(self, key: Hashable, how: Callable[[duckdb.DuckDBPyConnection], Any], run: str) -> Any:
        question = Question()
        self._questions.add(question)
        self.under_way += 1
        self.asked += 1

        def work() -> Any:
            if question.given_up:
                return None
            connection = self.connection()
            with question.reading(connection):
                return how(connection)

        own = self._shares.setdefault(run, asyncio.Semaphore(self._share))
        try:
            async with _Place(own) as share, _Place(self._free) as place:
                try:
                    return await asyncio.get_running_loop().run_in_executor(self._pool, work)
                except asyncio.CancelledError:
                    giving_up = asyncio.ensure_future(self._give_up(question, run, (place.taken(), share.taken())))
                    self._giving_up.add(giving_up)
                    giving_up.add_done_callback(self._giving_up.discard)
                    raise
        finally:
            self._shared.pop(key, None)
            self.under_way -= 1
            self._questions.discard(question)
            if not self.under_way:
                self._shares.clear()

    async def _give_up(self, question: Question, run: str, releases: tuple[Callable[[], None], ...]) -> None:
        """Interrupt a question until its thread comes back; one that does not for long gets a replacement."""
        left, held = time.monotonic() + LEAVE, False
        while question.give_up():
            if not held and time.monotonic() >= left and self.held.total() < MOST_HELD:
                held = True
                self.held[run] += 1
                for release in releases:
                    release()
            await asyncio.sleep(AGAIN)
        if held:
            self.held[run] -= 1
            return
        for release in releases:
            release()

    def close(self) -> None:
        """Interrupt what is read and let the threads end."""
        for question in list(self._questions):
            question.give_up()
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Place:
    """One of the places for threads: given back at the end, or by whoever takes it over."""

    def __init__(self, free: asyncio.Semaphore) -> None:
        self._free, self._owned = free, True

    async def __aenter__(self) -> _Place:  # noqa: PYI034 - typing.Self needs Python 3.11
        await self._free.acquire()
        return self

    def taken(self) -> Callable[[], None]:
        """Take it over; return how to give it back."""
        self._owned = False
        return self._free.release

    async def __aexit__(self, *_: object) -> None:
        if self._owned:
            self._free.release()
