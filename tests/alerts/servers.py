"""Real servers for the tests of notification: mail with STARTTLS and login, and web servers that behave as told."""

from __future__ import annotations

import datetime as dt
import http.server
import ipaddress
import json
import socket
import ssl
import struct
import threading
import time

import pytest

from tests.integration.processes import PATIENCE, free_port, until


class Hook:
    """A web server that does what a test tells it: answer with a status, hang, or reset the connection."""

    def __init__(self, *behaviours, headers=None):
        """Follow the behaviours one by one; the last one holds on. Without any it answers 200."""
        self.behaviours, self.headers = list(behaviours) or [200], headers or {}
        self.requests, self.lock, self.released = [], threading.Lock(), threading.Event()
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                hook.answer(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))

            def do_GET(self):
                hook.answer(self, b"{}")

            def log_message(self, *_):
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, handler, body):
        """Keep a request, and behave."""
        with self.lock:
            behaviour = self.behaviours[0] if len(self.behaviours) == 1 else self.behaviours.pop(0)
            entry = {"time": time.monotonic(), "path": handler.path, "headers": dict(handler.headers), "body": body}
            self.requests.append({**entry, "behaviour": behaviour})
        if behaviour == "hang":
            self.released.wait(600)
            return
        if behaviour == "reset":
            linger = struct.pack("ii", 1, 0)
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            handler.close_connection = True
            handler.connection.close()
            return
        status, headers = behaviour if isinstance(behaviour, tuple) else (behaviour, self.headers)
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"{}")

    def bodies(self, status=None):
        """Return the JSON documents that came, those that were answered with `status` only if one is given."""
        with self.lock:
            found = [request for request in self.requests if status is None or request["behaviour"] == status]
        return [json.loads(request["body"]) for request in found]

    def wait(self, number, seconds=PATIENCE):
        """Wait until so many requests have come; return their documents."""
        until(lambda: len(self.requests) >= number, f"{number} requests", seconds)
        return self.bodies()

    def close(self):
        """Stop."""
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


class Mailbox:
    """What came by mail."""

    def __init__(self):
        """Hold nothing."""
        self.mails, self.logins, self.refuse = [], [], []

    async def handle_DATA(self, server, session, envelope):  # noqa: N802 - aiosmtpd's
        """Keep a mail, or refuse it as told."""
        from email import message_from_bytes, policy

        if self.refuse:
            return self.refuse.pop(0)
        mail = message_from_bytes(envelope.content, policy=policy.default)
        self.mails.append({"to": envelope.rcpt_tos, "from": envelope.mail_from, "mail": mail, "raw": envelope.content})
        return "250 taken"

    def text(self, place=0):
        """Return the readable text of a mail."""
        mail = self.mails[place]["mail"]
        return mail.get_body(("plain", "html")).get_content()

    def html(self, place=0):
        """Return the HTML of a mail."""
        return self.mails[place]["mail"].get_body(("html",)).get_content()


class MailServer:
    """aiosmtpd that demands STARTTLS and a login."""

    def __init__(self, folder, user="me", password="pa55:w/rd@x"):
        """Start on a free port of this machine; `certificate` is the file that clients must trust."""
        smtp = pytest.importorskip("aiosmtpd.smtp", reason="needs aiosmtpd, of the extra test")
        controller = pytest.importorskip("aiosmtpd.controller")
        self.user, self.password, self.box = user, password, Mailbox()
        self.certificate, key = make_certificate(folder)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, key)

        def authenticate(server, session, envelope, mechanism, data):
            given = (data.login.decode(), data.password.decode())
            self.box.logins.append(given)
            return smtp.AuthResult(success=given == (user, password), handled=False)

        self.controller = controller.Controller(
            self.box,
            hostname="127.0.0.1",
            port=free_port(),
            tls_context=context,
            require_starttls=True,
            auth_required=True,
            authenticator=authenticate,
        )
        self.controller.start()
        self.port = self.controller.port

    def url(self, password=None):
        """Return the address for apprise."""
        from urllib.parse import quote

        secret = quote(self.password if password is None else password, safe="")
        return (
            f"mailtos://{self.user}:{secret}@localhost:{self.port}?mode=starttls&smtp=localhost"
            "&from=alerts@example.com&to=you@example.com"
        )

    def close(self):
        """Stop."""
        self.controller.stop()


def make_certificate(folder):
    """Write a certificate for localhost that signs itself, and its key; return their paths."""
    pytest.importorskip("cryptography", reason="needs cryptography, of the extra test")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.timezone.utc)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


def alert(name="loss_spike", number=0, **more):
    """Return an alert event."""
    return {
        "kind": "alert",
        "alert": f"{name}-{number}",
        "rule": name,
        "state": "firing",
        "severity": "warning",
        "text": f"loss jumped to {number}",
        "remedy": "lower the learning rate",
        "labels": {},
        "evidence": {"metric": "loss", "value": 9.5, "threshold": 3.0},
        "rank": 0,
        "step": 7,
        "time": time.time(),
        **more,
    }
