from __future__ import annotations

import http.server
import threading

import pytest

from bench.served import Server, free_port

HOSTS = (
    "evil.example",
    "0.0.0.0",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example:{port}",
    "0.0.0.0:{port}",
    "127.0.0.1@evil.example",
    "",
    "127.0.0.1.",
    "[::]",
    "xn--lcalhost-54a",
    "169.254.169.254",
)
ORIGINS = (
    "http://evil.example",
    "https://evil.example",
    "null",
    "http://127.0.0.1.evil.example",
    "http://127.0.0.1:1",
    "http://localhost.evil.example",
    "file://",
    "http://sub.localhost:{port}",
)


@pytest.fixture
def attacker():
    """A page on another port of this machine, as a site that a person visits while the server runs."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title>")

        def log_message(self, *_):
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), Page)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{found.server_address[1]}"
    found.shutdown()
    found.server_close()
    thread.join()


def ask(server, host, *lines, path="/api/runs", method="GET"):
    """Return the status of a request written by hand."""
    import socket

    with socket.create_connection(("127.0.0.1", server.port), timeout=90) as link:
        head = [
            f"{method} {path} HTTP/1.1",
            *([] if host is None else [f"Host: {host}"]),
            *lines,
            "Connection: close",
            "",
            "",
        ]
        link.sendall("\r\n".join(head).encode())
        answer = b""
        while b"\r\n" not in answer:
            part = link.recv(4096)
            if not part:
                break
            answer += part
    return int(answer.split()[1]) if answer else 0


@pytest.mark.parametrize("host", [*HOSTS, None])
def test_hostile_hosts_are_refused(server, host):
    """Rule S3: a name that is not the loopback's is refused before any handler, the health route too."""
    name = host.format(port=server.port) if host else host
    assert ask(server, name) in {400, 403, 421}
    assert ask(server, name, path="/healthz") in {400, 403, 421}


@pytest.mark.parametrize("origin", ORIGINS)
def test_hostile_origins_are_refused(server, origin):
    """Rule S4: a request that another site sends is refused, data and orders alike."""
    line = f"Origin: {origin.format(port=server.port)}"
    own = f"127.0.0.1:{server.port}"
    assert ask(server, own, line) in {400, 403}
    body = ("Content-Type: text/plain", "Content-Length: 0")
    assert ask(server, own, line, *body, path="/api/alerts", method="POST") in {400, 403, 415}


def test_a_site_on_another_port_reads_nothing(context, server, attacker):
    """Rule S4: in a real browser a page of another origin can neither read, nor post, nor frame ours."""
    page = context.new_page()
    page.goto(attacker)
    read = "async (at) => { try { return (await fetch(at)).status } catch { return 'refused' } }"
    opaque = """async (at) => { try { const a = await fetch(at, {mode: 'no-cors'}); return a.type + a.status }
      catch { return 'refused' } }"""
    post = """async (at) => { try { return (await fetch(at, {method: 'POST', mode: 'no-cors', body: '{}'})).status }
      catch { return 'refused' } }"""
    frame = """(at) => new Promise((done) => { const f = document.createElement('iframe'); f.src = at;
      f.onload = () => { let text = ''; try { text = f.contentDocument.body.innerText } catch {} done(text) };
      document.body.append(f) })"""
    assert page.evaluate(read, f"{server.origin}/api/runs") == "refused"
    assert page.evaluate(opaque, f"{server.origin}/api/runs") in {"refused", "opaque0"}
    assert page.evaluate(post, f"{server.origin}/api/alerts") in {"refused", 0}
    assert page.evaluate(frame, f"{server.origin}/") == ""
    page.close()


def test_every_answer_carries_the_policy(page, server, keys):
    """Rule S16: the page runs under a policy without inline script, eval or another host, and never breaks it."""
    broken = []
    page.expose_function("tellPolicy", lambda rule: broken.append(str(rule)))
    page.add_init_script("addEventListener('securitypolicyviolation', (e) => window.tellPolicy(e.violatedDirective))")
    answer = page.goto(server.page())
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "unsafe-eval" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    page.wait_for_function("() => document.body.dataset.view")
    assert broken == []


def test_the_token_is_asked_for_and_swapped(context, tmp_path):
    """Rule S6: without its token the page says what to open; with it, a cookie is set and the address is clean."""
    with Server(tmp_path, tmp_path) as server:
        page = context.new_page()
        page.goto(f"{server.origin}/")
        page.get_by_text("token").first.wait_for()
        said = server.log.read_text()
        address = next(word for word in said.split() if "token=" in word)
        page.goto(address)
        page.wait_for_function("() => document.body.dataset.view === 'runs'")
        assert "token" not in page.url
        [cookie] = context.cookies()
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        token = address.partition("token=")[2].partition("#")[0].partition("&")[0]
        assert token not in page.evaluate("() => JSON.stringify([document.cookie, location.href, {...localStorage}])")
        page.close()


def test_a_private_file_leads_a_browser_in(context, tmp_path, monkeypatch):
    """Rule S6: the file that --open starts a browser with leads to the page, with the cookie set."""
    from stepscope.web.server import Server as Served
    from stepscope.web.server import ServerOptions

    monkeypatch.setenv("STEPSCOPE_RUNTIME_DIR", str(tmp_path / "runtime"))
    server = Served(ServerOptions(tmp_path, port=0))
    server.start()
    try:
        page = context.new_page()
        page.goto(server.doorway().as_uri())
        page.wait_for_function("() => document.body.dataset.view === 'runs'")
        assert page.url.startswith(server.address_for(None))
        assert page.evaluate("async () => (await fetch('api/runs')).status") == 200
        page.close()
    finally:
        server.stop()
