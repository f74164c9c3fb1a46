"""A web server for tests on a port of its own, whose answers are scripted."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading


class Reply:
    """One scripted answer; `how` is a fault: cut (close at once), hang, drip (one byte at a time), half."""

    def __init__(self, status=200, body=b"{}", headers=None, how=""):
        self.status, self.body, self.how = status, body, how
        self.headers = {"Content-Type": "application/json", **(headers or {})}


class WebServer:
    """Serves replies in order, the last one for ever; a reply may be a function of the request."""

    def __init__(self, *replies):
        self.replies, self.requests = list(replies) or [Reply()], []
        self.connections = 0
        self.released = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def setup(self):
                outer.connections += 1
                super().setup()

            def log_message(self, *arguments):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.requests.append((self.command, self.path, dict(self.headers), body))
                reply = outer.replies.pop(0) if len(outer.replies) > 1 else outer.replies[0]
                outer.answer(self, reply(self, body) if callable(reply) else reply)

            def do_GET(self):
                self.do_POST()

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer(self, handler, reply):
        handler.close_connection = bool(reply.how)
        if reply.how == "cut":
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        if reply.how == "hang":
            self.released.wait(30)
            return
        with contextlib.suppress(OSError):  # the client may have given up
            handler.send_response(reply.status)
            for name, value in reply.headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(reply.body) + (9 if reply.how == "half" else 0)))
            handler.end_headers()
            if reply.how == "drip":
                for byte in reply.body:
                    handler.wfile.write(bytes([byte]))
                    handler.wfile.flush()
                    if self.released.wait(0.05):
                        return
            else:
                handler.wfile.write(reply.body)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def close(self):
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
