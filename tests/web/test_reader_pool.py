"""The threads that read: equal questions once, a bounded queue, and nobody reads for who has left."""

from __future__ import annotations

import asyncio
import socket
import threading

import duckdb
import pytest

from stepscope.web import handlers, reader_pool
from stepscope.web.reader_pool import ReaderPool, TooBusyError
from tests.web.served import RUN, Client, ready, started


@pytest.fixture
def readers():
    found = ReaderPool(threads=1, waiting=2)
    yield found
    found.close()


def test_equal_questions_are_read_once(readers):
    """Whoever asks the same meanwhile waits for the same answer."""
    read, go = [], threading.Event()

    async def ask():
        def how(_connection):
            read.append(1)
            go.wait(60)
            return "answer"

        waiting = [asyncio.ensure_future(readers.read("same", how)) for _ in range(20)]
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(ask()) == ["answer"] * 20
    assert len(read) == 1


def test_a_long_question_waits_for_short_ones(readers, monkeypatch):
    """What takes seconds begins after the first requests of a page, though it was asked first; but not never."""
    monkeypatch.setattr(reader_pool, "PATIENCE_SECONDS", 60.0)
    order = []

    async def ask():
        long = asyncio.ensure_future(readers.read("long", lambda _: order.append("long"), is_long=True))
        for number in range(3):
            await asyncio.sleep(0)
            await readers.read(number, lambda _, number=number: order.append(number))
        await long
        monkeypatch.setattr(reader_pool, "PATIENCE_SECONDS", 0.0)
        go = threading.Event()
        busy = asyncio.ensure_future(readers.read("busy", lambda _: go.wait(60)))
        long = asyncio.ensure_future(readers.read("long", lambda _: order.append("again"), is_long=True))
        go.set()
        await asyncio.gather(busy, long)

    asyncio.run(ask())
    assert order == [0, 1, 2, "long", "again"]


def test_a_full_queue_refuses(readers):
    """Beyond the bound a question is refused at once, and those under way are answered."""
    go = threading.Event()

    async def ask():
        waiting = [asyncio.ensure_future(readers.read(number, lambda _: go.wait(60))) for number in range(2)]
        while readers.in_progress < 2:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
        with pytest.raises(TooBusyError):
            await readers.read("more", lambda _: None)
        go.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(ask()) == [True, True]
    assert (readers.refused, readers.in_progress) == (1, 0)


def test_a_question_that_nobody_waits_for_is_interrupted(readers):
    """DuckDB is interrupted when the last who waits has left, and the thread reads for others again."""
    ended = threading.Event()
    begun = threading.Event()

    def slow(connection):
        begun.set()
        try:
            connection.execute("SELECT count(*) FROM range(100000000000) a, range(100000) b").fetchall()
        except duckdb.InterruptException:
            ended.set()

    async def ask():
        waiting = [asyncio.ensure_future(readers.read("slow", slow)) for _ in range(2)]
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 60)
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        assert not ended.is_set()
        waiting[1].cancel()
        assert await asyncio.get_running_loop().run_in_executor(None, ended.wait, 60)
        return await readers.read("next", lambda _: "answer")

    assert asyncio.run(ask()) == "answer"
    assert readers.cancelled == 1


def test_a_client_that_leaves_ends_its_question(root, monkeypatch):
    """A browser that goes away while its question is read has it interrupted."""
    begun, ended = threading.Event(), threading.Event()

    def slow(_key, connection):
        begun.set()
        try:
            connection.execute("SELECT count(*) FROM range(100000000000) a, range(100000) b").fetchall()
        finally:
            ended.set()

    server = started(root)
    try:
        ready(server)
        monkeypatch.setattr(server.site, "open", slow)
        bearer = f"Authorization: Bearer {server.policy.token}"
        head = f"GET /api/run?run={RUN.replace('/', '%2F')} HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head)
            assert begun.wait(60)
        assert ended.wait(60)
        assert Client(server).get("/healthz").status == 200
    finally:
        server.stop()


def test_a_question_has_a_deadline(root, monkeypatch):
    """A question that takes too long is answered by 503 with when to ask again."""
    monkeypatch.setattr(handlers, "DEADLINE", 0.1)
    server = started(root)
    try:
        ready(server)
        go = threading.Event()
        monkeypatch.setattr(server.site, "open", lambda *_words: go.wait(60))
        answer = Client(server).get("/api/names", query={"run": RUN})
        go.set()
        assert answer.status == 503
        assert answer.headers["retry-after"] == "5"
    finally:
        server.stop()


def test_many_questions_at_once(server):
    """Many questions at a time are all answered, or told to come again; the server lives on."""
    client = Client(server)
    found = []

    def ask(number):
        query = {"run": RUN, "name": "loss", "points": 10 + number % 300}
        found.extend(client.get("/api/series", query=query).status for _ in range(3))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    assert set(found) <= {200, 503}
    assert client.get("/healthz").status == 200
