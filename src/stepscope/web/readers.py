"""Threads that read runs: few, each with its own DuckDB connection, equal questions asked once, the rest in a queue.

The event loop never touches a file of a run: a hanging disk holds up its own question and no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import duckdb

MEMORY = "256MB"
"""What DuckDB may take in each thread."""
AGAIN = 0.05
"""Seconds between two interruptions of a question that was given up."""


class BusyError(Exception):
    """So many questions are waiting that another one is refused."""


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

    def __init__(self, threads: int = 2, waiting: int = 64) -> None:
        """Start with no thread; `waiting` questions may be under way or in the queue."""
        self._pool = ThreadPoolExecutor(threads, "stepscope-reader")
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

    async def ask(self, key: Hashable, how: Callable[[duckdb.DuckDBPyConnection], Any]) -> Any:
        """Return what `how` returns in one of the threads; who asks the same meanwhile gets the same answer.

        A question that nobody waits for any more is interrupted.

        Raises:
            BusyError: too many are waiting.
        """
        future = self._shared.get(key)
        if future is None:
            if self.under_way >= self._most:
                self.refused += 1
                raise BusyError
            future = asyncio.ensure_future(self._run(key, how))
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

    async def _run(self, key: Hashable, how: Callable[[duckdb.DuckDBPyConnection], Any]) -> Any:
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

        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except asyncio.CancelledError:
            self._shared.pop(key, None)
            giving_up = asyncio.ensure_future(_give_up(question))
            self._giving_up.add(giving_up)
            giving_up.add_done_callback(self._giving_up.discard)
            raise
        finally:
            self.under_way -= 1
            self._questions.discard(question)

    def close(self) -> None:
        """Interrupt what is read and let the threads end."""
        for question in list(self._questions):
            question.give_up()
        self._pool.shutdown(wait=False, cancel_futures=True)


async def _give_up(question: Question) -> None:
    while question.give_up():  # noqa: ASYNC110 - DuckDB has no event for this
        await asyncio.sleep(AGAIN)
