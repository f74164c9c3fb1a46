"""A web server on loopback for the tests: keeps what it gets, and answers what the test says."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Request(NamedTuple):
    """What a client sent."""

    path: str
    headers: dict
    body: bytes


class Receiver:
    """Answers each POST with what `answer` returns for it: status, headers, body."""

    def __init__(self, answer):
        self.requests = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = Request(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                receiver.requests.append(request)
                status, headers, content = answer(request)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.place = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def unpacked(request):
    """Return the content of a request: Snappy blocks and gzip are the two ways in which it may be packed."""
    return gzip.decompress(request.body) if request.headers["content-encoding"] == "gzip" else unsnapped(request.body)


def unsnapped(data):
    """Decode a Snappy block: literals, and copies of what came before."""
    size, at = _varint(data, 0)
    found = bytearray()
    while at < len(data):
        tag, at = data[at], at + 1
        if tag & 3 == 0:
            length = tag >> 2
            if length >= 60:
                extra = length - 59
                length, at = int.from_bytes(data[at : at + extra], "little"), at + extra
            found += data[at : at + length + 1]
            at += length + 1
            continue
        if tag & 3 == 1:
            length, offset, at = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at], at + 1
        else:
            wide = 2 if tag & 3 == 2 else 4
            length, offset, at = (tag >> 2) + 1, int.from_bytes(data[at : at + wide], "little"), at + wide
        for _ in range(length):
            found.append(found[-offset])
    assert len(found) == size
    return bytes(found)


def _varint(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return number, at
