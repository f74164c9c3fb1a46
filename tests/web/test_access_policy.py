"""The security rules of the server."""

from __future__ import annotations

import ast
import json
import os
import socket
import stat
from pathlib import Path

import pytest

import stepscope.web
from stepscope.core.access import host_name
from stepscope.core.errors import StepscopeError
from stepscope.web.access_policy import ADMIN, READ, AccessPolicy
from stepscope.web.listening import token_for
from stepscope.web.server import Server, ServerOptions
from tests.web.served import DATA, GETS, RUN, Client, listed, ready, started

HOSTS = (
    "evil.example",
    "evil.example:{port}",
    "0.0.0.0",
    "0.0.0.0:{port}",
    "[::]:{port}",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "localhost.",
    "127.0.0.1.",
    "localhost@evil.example",
    "evil.example#localhost",
    "127.0.0.1:{port}:80",
    "127.0.0.1:99999999",
    "127.0.0.1:port",
    "2130706433",
    "0x7f000001",
    "127.1",
    "[::ffff:127.0.0.1]",
    "169.254.169.254",
    " ",
    "-",
    "..",
    "xn--lcalhost-m9a",
    "\uff4cocalhost",
)
ORIGINS = (
    "null",
    "http://evil.example",
    "https://evil.example:443",
    "http://127.0.0.1",
    "http://127.0.0.1:1",
    "http://localhost:{port}",
    "http://127.0.0.1:{port}.evil.example",
    "http://127.0.0.1.evil.example:{port}",
    "http://evil.127.0.0.1:{port}",
    "http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}@evil.example",
    "file://",
    "chrome-extension://abc",
    "moz-extension://abc",
    "data:text/html,x",
    "ws://127.0.0.1:{port}",
    "HTTP://127.0.0.2:{port}",
    "http://[::1]:{port}",
    "",
    "http://127.0.0.1:{port} http://evil.example",
)


def listeners(server):
    return [one.getsockname()[0] for one in server._sockets]


def test_only_this_machine_is_listened_to(root):
    """Unless told otherwise every listener is on loopback: of the server, of localhost in both protocols."""
    for host, expected in (("127.0.0.1", {"127.0.0.1"}), ("localhost", {"127.0.0.1", "::1"})):
        server = Server(ServerOptions(root, host, 0))
        try:
            assert set(listeners(server)) <= expected
            assert listeners(server)
            assert len({one.getsockname()[1] for one in server._sockets}) == 1
        finally:
            server.stop()
    assert ServerOptions(root).host == "127.0.0.1"


@pytest.mark.promise("S1-050")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", socket.gethostname()])
def test_another_address_needs_a_token_of_our_own(root, tmp_path, host):
    """Beyond loopback there is a token of 128 bits or more in a file for its owner, and a warning about absent TLS."""
    path = tmp_path / "token"
    try:
        server = Server(ServerOptions(root, host, 0, token_file=path))
    except StepscopeError as error:  # a machine whose own name, or IPv6, leads nowhere
        pytest.skip(str(error))
    try:
        token = server.policy.token
        assert len(bytes.fromhex(token)) * 8 >= 128
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert any("warning" in notice and "TLS" in notice for notice in server.notices())
        assert token_for(host, path) == token
    finally:
        server.stop()


def test_without_a_place_for_the_token_it_does_not_start(tmp_path, monkeypatch):
    """Where no token can be kept nothing is served, on loopback neither."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "file" / "token", tmp_path / "link"):
        with pytest.raises(StepscopeError, match=r"cannot serve on 0\.0\.0\.0: its token cannot be stored"):
            token_for("0.0.0.0", path)
    monkeypatch.setenv("STEPSCOPE_RUNTIME_DIR", str(tmp_path / "file"))
    with pytest.raises(StepscopeError, match=r"cannot serve on 127\.0\.0\.1: its token cannot be stored"):
        Server(ServerOptions(tmp_path, port=0))


@pytest.mark.parametrize("host", HOSTS)
def test_other_hosts_are_not_answered(client, host):
    """A name that is not this server's is refused on every route, health too, before anything is looked at."""
    for path in ("/healthz", "/api/runs", "/"):
        answer = client.get(path, host=host.format(port=client.port).encode("utf-8"))
        assert answer.status in {400, 421}, path
        assert b"mnist" not in answer.body


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:{port}", "localhost", "LOCALHOST:{port}", "[::1]:{port}"])
def test_own_names_are_answered(client, host):
    """Loopback and its names are this server, with or without the port."""
    assert client.get("/healthz", host=host.format(port=client.port)).status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        b"GET http://evil.example/healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"GET http://127.0.0.1/healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    ],
)
def test_absent_double_and_absolute_hosts(client, head):
    """No host, two hosts, and a target that names another host are refused."""
    assert client.send(head).split(b" ", 2)[1] in {b"400", b"421"}


@pytest.mark.parametrize("origin", ORIGINS)
def test_other_origins_are_not_answered(client, origin):
    """A page of another origin gets neither data nor the page, whatever its origin is spelt like."""
    headers = {"Origin": origin.format(port=client.port)}
    for path in ("/api/runs", "/healthz", "/"):
        assert client.get(path, headers).status == 403, path


@pytest.mark.parametrize("site", ["cross-site", "same-site", "other", ""])
def test_other_sites_are_not_answered(client, site):
    """A browser that says that another site asks gets no data; a link elsewhere may lead to the page itself."""
    assert client.get("/api/runs", {"Sec-Fetch-Site": site}).status == 403
    arriving = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", arriving).status == 200
    assert client.get("/api/runs", arriving).status == 403
    assert client.get("/", {**arriving, "Sec-Fetch-Dest": "iframe"}).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/json"},
        {"Content-Type": "application/x-www-form-urlencoded", "Cookie": "stepscope-1=x"},
        {"Content-Type": "application/json", "Origin": "null"},
        {"Content-Type": "application/json", "Sec-Fetch-Site": "none"},
    ],
)
def test_changes_come_from_the_page_itself(client, headers):
    """What changes something must say that it comes from this page; a form of another page cannot."""
    body = json.dumps({"run": RUN, "action": "test"}).encode()
    assert client.get("/api/alerts", headers, method="POST", body=body).status == 403


def test_no_header_lets_other_origins_read(client):
    """No answer has a CORS header, not to a preflight either."""
    for method, path in (("GET", "/api/runs"), ("OPTIONS", "/api/runs"), ("GET", "/")):
        answer = client.get(path, {"Access-Control-Request-Method": "GET"}, method=method)
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize("origin", ["http://evil.example", None])
def test_there_is_no_web_socket(client, origin):
    """A handshake is never taken up; one of another origin is refused."""
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    answer = client.get("/api/live", {**handshake, **({"Origin": origin} if origin else {})})
    assert answer.status == (403 if origin else 400)


def test_a_token_in_the_address_becomes_a_cookie(server, capfd, caplog):
    """The token leaves the address at once, the cookie is not the token, no script reads it, and nothing is logged."""
    client, token = Client(server.port), server.policy.token
    answer = client.get("/", query={"token": token})
    cookie = answer.headers["set-cookie"]
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert token not in cookie
    assert token not in str(answer.headers.items()) + answer.body.decode()
    pair = cookie.partition(";")[0]
    assert client.get("/api/runs", {"Cookie": f"a=b; {pair}"}).status == 200
    assert client.get("/api/runs", {"Cookie": pair + "0"}).status == 401
    assert client.get("/api/runs", {"Authorization": f"Bearer {token}"}).status == 200
    assert client.get("/", query={"token": "wrong"}).status == 401
    assert client.get("/").headers["referrer-policy"] == "no-referrer"
    printed = capfd.readouterr()
    assert token not in printed.out + printed.err + caplog.text


def test_tokens_are_compared_in_constant_time():
    """Every comparison of a secret in the rules goes through hmac.compare_digest."""
    tree = ast.parse(Path(stepscope.web.__file__).with_name("access_policy.py").read_text())
    method = next(node for node in ast.walk(tree) if getattr(node, "name", "") == "scope")
    compared = [node for node in ast.walk(method) if isinstance(node, ast.Compare)]
    assert not [node for node in compared if "token" in ast.unparse(node) and "None" not in ast.unparse(node)]
    assert "compare_digest" in ast.unparse(tree)


@pytest.mark.parametrize("path", DATA)
@pytest.mark.parametrize(("scope", "status"), [(None, 401), (READ, 200), (ADMIN, 200)])
def test_every_route_needs_a_scope(server, path, scope, status):
    """Without a token no data is answered; the token to look at things answers every question."""
    headers = {} if scope is None else {"Authorization": f"Bearer {server.policy.token_for(scope)}"}
    assert Client(server.port).get(path, headers).status == status


@pytest.mark.parametrize(("scope", "status"), [(None, 401), (READ, 403), (ADMIN, 404)])
def test_only_the_owner_changes_anything(server, scope, status):
    """A token to look cannot acknowledge, silence or test; neither can it be turned into the owner's."""
    token = server.policy.token_for(scope) if scope else ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    assert Client(server.port).post("/api/alerts", {"run": RUN, "action": "test"}, headers).status == status
    assert server.policy.token_for(READ) not in server.policy.token
    assert Client(server.port).get("/healthz").status == 200


def test_guesses_are_limited_and_told_nothing():
    """After some wrong tokens in a minute the answer is 429; the text is always the same, and the right one passes."""
    rules = AccessPolicy("0.0.0.0", "a" * 48, 8080)
    guesses = [rules.scope([(b"authorization", f"Bearer {number:048x}".encode())], 100.0) for number in range(1000)]
    assert [guess.status for guess in guesses[:20]] == [401] * 20
    assert {guess.status for guess in guesses[20:]} == {429}
    assert len({guess.text for guess in guesses[:20]}) == 1
    assert rules.scope([(b"authorization", b"Bearer " + b"a" * 48)], 100.0) == ADMIN
    assert rules.scope([(b"authorization", b"Bearer x")], 200.0).status == 401


@pytest.mark.parametrize("path", [*GETS, "/api/nothing", "/api/run?run=nothing", "/assets/no.js", "/a.svg"])
def test_every_answer_has_its_headers(client, path):
    """Every answer, a refusal too, forbids foreign scripts, frames, sniffing, referrers and reading across origins."""
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers
    if path in DATA:
        assert headers["cache-control"] == "no-store"


def test_nothing_of_another_host_is_in_our_pages():
    """The pages that come with us name no other host, and have no script or style in their text."""
    folder = Path(stepscope.web.__file__).parent
    for path in [*(folder / "dashboard_page").iterdir(), *(folder / "static").rglob("*.html")]:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        assert " style=" not in text
        assert " onload=" not in text


@pytest.mark.parametrize("path", ["dashboard_page/dashboard.js"])
def test_scripts_put_data_in_as_text(path):
    """No script of ours has a sink that makes markup or code of data."""
    text = (Path(stepscope.web.__file__).parent / path).read_text(encoding="utf-8")
    for sink in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "srcdoc",
        "javascript:",
    ):
        assert sink not in text


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "json"])
def test_downloads_are_never_shown(client, form):
    """A download is an attachment of a fixed type under a plain name, and a sandbox wherever it is opened."""
    answer = client.get("/api/export", query={"run": RUN, "format": form})
    kind, headers = answer.headers["content-type"], answer.headers
    assert answer.status == 200
    assert headers["content-disposition"] == f'attachment; filename="run-1.{form}"'
    assert "sandbox" in headers["content-security-policy"]
    assert "html" not in kind
    assert "svg" not in kind


def test_every_question_has_bounds(client):
    """Too many names, runs, points, rows and parameters are refused before anything is read."""
    names = [("name", f"n{number}") for number in range(65)]
    for query in (
        [("run", RUN), *names],
        [("run", RUN)] * 21 + [("name", "loss")],
        {"run": RUN, "name": "loss", "points": 4001},
        {"run": RUN, "name": "loss", "points": 0},
        [("run", f"r{number}") for number in range(20)] + names[:64] + [("points", 4000)],
        {"run": RUN, "name": "loss", "from": "nan"},
        {"run": RUN, "name": "loss", "from": "1e400"},
        {"run": RUN, "name": "loss", "other": 1},
        [("run", RUN), ("name", "loss"), ("points", 10), ("points", 20)],
    ):
        assert client.get("/api/series", query=query).status in {400, 414}
    assert client.get("/api/events", query={"run": RUN, "limit": 5001}).status == 400
    assert client.get("/api/runs?" + "&".join(f"a{number}=1" for number in range(500))).status == 400


def test_errors_show_an_id_and_nothing_else(root, monkeypatch, caplog):
    """An error of our own is answered with an id; the traceback goes to the server's log under the same id."""
    secret = "/home/somebody/secret"

    def fail(*_arguments, **_named):
        raise RuntimeError(secret)

    server = started(root)
    try:
        ready(server)
        monkeypatch.setattr(server.site, "folder", fail)
        monkeypatch.setattr(server.site.runs, "rows", fail)
        client = Client(server)
        with caplog.at_level("ERROR", "stepscope.web"):
            for path in DATA:
                answer = client.get(path)
                if answer.status == 200:
                    continue
                assert answer.status == 500, path
                told = answer.json["error"]
                assert set(told) == {"id", "text"}
                assert told["id"] in told["text"]
                assert told["id"] in caplog.text
                for word in (secret, "Traceback", "RuntimeError", os.sep + "stepscope"):
                    assert word not in answer.body.decode()
        assert secret in caplog.text
    finally:
        monkeypatch.undo()
        server.stop()


def test_a_run_that_cannot_be_read_is_told_without_its_path(tmp_path):
    """What is wrong with a run is said in words, without the folder it lies in."""
    folder = tmp_path / "runs" / "p" / "broken"
    (folder / "tail").mkdir(parents=True)
    (folder / "run.json").write_text("{")
    server = started(tmp_path / "runs")
    try:
        client = Client(server)
        listed(server)
        row = client.get("/api/runs").json["rows"][0]
        assert (row["state"], row["card"]) == ("broken", None)
        assert "run.json cannot be read" in row["cause"]
        answer = client.get("/api/run", query={"run": "p/broken"})
        assert answer.status == 404
        assert str(tmp_path) not in answer.body.decode()
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("host", "name"),
    [(b"a", "a"), (b"A:80", "a"), (b"[::1]", "[::1]"), (b"[::1]:80", "[::1]"), (b"a:b", None), (b"a:", None)],
)
def test_the_name_in_a_host(host, name):
    """The name of a `Host` is what stands before its port."""
    assert host_name(host.decode("latin-1")) == name
