"""The rules for what is sent: names that lead elsewhere, and requests that are too large or too slow."""

from __future__ import annotations

import gzip

import pytest

from stepscope.web import protocol
from tests.web.served import RUN, Client, listed, ready, started


def hostile_names():
    """Return texts that have led out of a folder somewhere, and their encodings."""
    targets = ["etc/passwd", "run.json", "", "proc/self/environ", ".ssh/id_rsa"]
    ups = [
        "../",
        "..\\",
        "....//",
        "..;/",
        "%2e%2e/",
        "%2e%2e%2f",
        "..%2f",
        "..%5c",
        "%252e%252e%252f",
        "..%c0%af",
        "\u2024\u2024/",
    ]
    found = [up * times + target for up in ups for times in (1, 3, 8) for target in targets]
    found += [f"mnist/{name}" for name in found[:60]]
    starts = ["/", "//", "\\\\host\\share\\", "file:///", "C:\\", "~", "~root/", "\0", "mnist/run-1\0", "mnist//", "./"]
    found += [start + target for start in starts for target in targets]
    tails = [
        "#",
        "?",
        ";",
        "%00",
        "%00.json",
        "/.",
        "/..",
        "/run.json",
        "/nodes",
        " ",
        ".",
        "\n",
        "\r\nX: y",
        "|id",
        "`id`",
    ]
    found += [RUN + tail for tail in tails]
    found += [
        "$(id)",
        "${jndi:ldap://x}",
        "'; DROP TABLE points; --",
        "*",
        "mnist/*",
        "[",
        "%s%s%n",
        "a" * 500,
        "\u202e",
        "é",
    ]
    return list(dict.fromkeys(found))


def test_no_name_leads_out_of_the_runs(client, root):
    """Hundreds of hostile texts as run, metric, cursor and path lead to no file: only what is listed is opened."""
    texts = hostile_names()
    assert len(texts) >= 300
    (root.parent / "run.json").write_text('{"id": "outside", "secret": "do not serve"}')
    for text in texts:
        for route, query in (("run", {"run": text}), ("live", {"run": RUN, "since": text[:40]})):
            answer = client.get(f"/api/{route}", query=query)
            assert answer.status in {400, 404, 409}, (route, text)
            assert b"do not serve" not in answer.body
            assert b"root:" not in answer.body


@pytest.mark.slow
@pytest.mark.parametrize("route", ["series", "export", "recipe"])
def test_hostile_metrics_are_only_unknown(client, route):
    """A metric's name is compared, never opened and never part of a query's text."""
    more = {"format": "csv"} if route == "export" else {}
    for text in hostile_names()[::6]:
        answer = client.get(f"/api/{route}", query={"run": RUN, "name": text, **more})
        assert answer.status in {200, 400, 404}, text
        assert b"root:" not in answer.body


def test_paths_of_the_page_lead_to_its_own_files(client):
    """A path is looked up among the files of the page; everything else is the page, the way up to it, or nothing."""
    for text in hostile_names()[:200]:
        if any(ord(letter) < 33 or ord(letter) > 126 for letter in text):
            continue
        answer = client.get("/" + text.lstrip("/"))
        assert answer.status in {200, 307, 400, 404, 414}, text
        assert set(answer.headers.get("location", "")) <= set("./")  # never to another host
        assert b"root:" not in answer.body


def test_a_link_in_the_folder_of_runs_is_only_what_it_leads_to(tmp_path):
    """A run whose folder was swapped for a link to elsewhere shows no file from there but a run's own."""
    root = tmp_path / "runs" / "mnist"
    root.mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "run.json").write_text("not a run: do not serve")
    (root / "link").symlink_to(tmp_path / "secret")
    server = started(tmp_path / "runs")
    try:
        client = Client(server)
        listed(server)
        for path in ("/api/runs", "/api/run?run=mnist%2Flink", "/api/export?run=mnist%2Flink&format=json"):
            assert b"do not serve" not in client.get(path).body
    finally:
        server.stop()


def test_large_and_lying_bodies(client):
    """A body has a limit, in bytes and in depth, and is taken as it is: nothing is unpacked."""
    assert client.post("/api/alerts", b" " * 70_000).status == 413
    assert client.post("/api/alerts", b"[" * 60_000).status == 400
    assert client.post("/api/alerts", b'{"run":' + b'{"a":' * 10_000).status == 400
    bomb = gzip.compress(bytes(10_000_000))
    for encoding in ("gzip", "deflate", "br", "zstd", "identity, gzip"):
        assert client.post("/api/alerts", bomb, {"Content-Encoding": encoding}).status == 415
    assert client.post("/api/alerts", b"{}", {"Content-Type": "text/plain"}).status == 415
    assert client.get("/api/runs", method="GET", body=b"x" * 1000).status == 200


def test_long_addresses_and_heads(client):
    """An address and a head have limits."""
    assert client.get("/api/runs?since=" + "1" * 17_000).status == 414
    assert client.get("/" + "a" * 3000).status == 414
    for headers in ({"X": "a" * 40_000}, {f"X{number}": "a" for number in range(101)}):
        assert client.get("/healthz", headers).status in {400, 431}


def test_slow_senders_are_dropped(root, monkeypatch):
    """A connection that sends no whole head in time is closed, and so is one whose body does not come."""
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr("stepscope.web.handlers.BODY_SECONDS", 0.2)
    server = started(root)
    try:
        client = Client(server)
        assert client.send(b"") == b""
        assert client.send(b"GET /healthz HTTP/1.1\r\nHo") == b""
        ready(server)
        monkeypatch.setattr(protocol, "HEAD_SECONDS", 120.0)  # now only the body is late
        token = f"Authorization: Bearer {server.policy.token}\r\n"
        own = f"{token}Host: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nContent-Type: {'application/json'}\r\n".encode()
        late = b"POST /api/alerts HTTP/1.1\r\n" + own + b"Content-Length: 50\r\nConnection: close\r\n\r\n{"
        assert client.send(late).startswith(b"HTTP/1.1 503")
        monkeypatch.setattr("stepscope.web.handlers.BODY_SECONDS", 120.0)
        lie = b"POST /api/alerts HTTP/1.1\r\n" + own + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n"
        assert client.send(lie).startswith(b"HTTP/1.1 400")
    finally:
        server.stop()
