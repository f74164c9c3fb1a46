"""An exchange between changing pairs of ranks over TCP, with a delaying proxy in front of one of them."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.stragglers.job import Job

MESSAGE = b"x" * 4096
WAIT = 60.0


class Exchange:
    """The links of one rank to all others: one connection each, through a proxy for the rank with the slow link."""

    def __init__(self, job: Job, rank: int) -> None:
        """Connect to all ranks with a lower number, and wait for all with a higher one."""
        self._ranks, self._rank = job.ranks, rank
        folder = Path(job.folder) / "links"
        folder.mkdir(exist_ok=True)
        server = socket.create_server(("127.0.0.1", 0), backlog=job.ranks)
        _say(folder / str(rank), server.getsockname()[1])
        self._links: dict[int, socket.socket] = {}
        for other in range(rank):
            port = _hear(folder / str(other))
            if rank in job.late or other in job.late:
                port = _proxy(port, job.seconds / 2)
            link = socket.create_connection(("127.0.0.1", port))
            link.sendall(rank.to_bytes(2, "big"))
            self._links[other] = link
        while len(self._links) < job.ranks - 1:
            link, _ = server.accept()
            self._links[int.from_bytes(_read(link, 2), "big")] = link
        for link in self._links.values():
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.close()

    def meet(self, step: int) -> None:
        """Exchange a message with the partner of this step, and receive its answer: two times over the link."""
        other = self._rank ^ (1 + step % (self._ranks - 1))
        link = self._links[other]
        for _ in range(2):
            link.sendall(MESSAGE)
            _read(link, len(MESSAGE))

    def close(self) -> None:
        """Close all links."""
        for link in self._links.values():
            link.close()


def _say(path: Path, port: int) -> None:
    part = path.with_suffix(".part")
    part.write_text(str(port))
    part.rename(path)


def _hear(path: Path) -> int:
    end = time.monotonic() + WAIT
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"cannot connect to rank {path.name}: it has not come in {WAIT:g} s")
        time.sleep(0.01)
    return int(path.read_text())


def _read(link: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = link.recv(size - len(found))
        if not more:
            raise ConnectionError("cannot read from a rank: it has closed its link")
        found += more
    return found


def _proxy(port: int, delay: float) -> int:
    """Start a proxy that passes on everything `delay` seconds later; return its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        near, _ = server.accept()
        far = socket.create_connection(("127.0.0.1", port))
        for source, target in ((near, far), (far, near)):
            target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pass_on, args=(source, target, delay), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def _pass_on(source: socket.socket, target: socket.socket, delay: float) -> None:
    try:
        while data := source.recv(1 << 16):
            time.sleep(delay)
            target.sendall(data)
    except OSError:  # the other side has closed
        return
    finally:
        target.close()
