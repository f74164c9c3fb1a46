from __future__ import annotations

import json
import os
import socket
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.exporters.prometheus import server as prometheus_server
from stepscope.exporters.prometheus.feed import TargetsFile
from stepscope.exporters.prometheus.request import GUESSES, Reply, Rules, answer
from stepscope.exporters.prometheus.server import CONNECTIONS, REQUEST_BYTES, SECONDS, Endpoint
from tests.integration.processes import until


class Moment:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def page(accept):
    return "text/plain", f"x 1\n# {accept}\n".encode()


@pytest.fixture
def clock():
    return Moment()


@pytest.fixture
def endpoint(clock):
    made = Endpoint(page, port=0, clock=clock)
    yield made
    made.close()


def request(path="/metrics", host="localhost", method="GET", **headers):
    lines = [f"{method} {path} HTTP/1.1", *([f"Host: {host}"] if host else [])]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def connect(endpoint):
    return socket.create_connection(("127.0.0.1", endpoint.port), 5)


def receive(endpoint, client):
    """Let the endpoint work until it has answered and let go."""
    data = b""
    client.settimeout(0.01)
    for _ in range(500):
        endpoint.poll()
        try:
            part = client.recv(1 << 20)
        except TimeoutError:
            continue
        except ConnectionResetError:
            return data
        if not part:
            return data
        data += part
    raise AssertionError("no answer")


def ask(endpoint, data):
    with connect(endpoint) as client:
        client.sendall(data)
        return receive(endpoint, client)


def status(reply):
    return int(reply.split(b" ")[1])


def decide(data, rules=None, local="127.0.0.1", now=0.0):
    head = data.partition(b"\r\n\r\n")[0]
    return answer(head, rules or Rules("127.0.0.1"), local, lambda accept: Reply(200, *page(accept)), now)


def test_page_and_health_are_served(endpoint):
    """GET /metrics gives the page in the form that was accepted, /healthz says ok, HEAD only the head."""
    head, _, body = ask(endpoint, request(Accept="text/x")).partition(b"\r\n\r\n")
    assert (status(head), body) == (200, b"x 1\n# text/x\n")
    assert ask(endpoint, request("/healthz")).endswith(b"\r\n\r\nok\n")
    assert ask(endpoint, request("/metrics?name=x")).endswith(b"# \n")
    assert ask(endpoint, request(method="HEAD")).endswith(b"\r\n\r\n")
    assert endpoint.scrapes == 3


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/", "/nothing"])
def test_every_answer_is_guarded(path):
    """Every route carries the headers that keep a browser from using it otherwise."""
    head = decide(request(path)).encode().decode()
    for line in (
        "X-Content-Type-Options: nosniff",
        "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
        "Cross-Origin-Resource-Policy: same-origin",
        "Referrer-Policy: no-referrer",
        "Cache-Control: no-store",
    ):
        assert f"{line}\r\n" in head
    assert "Access-Control" not in head


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/nothing"])
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "0.0.0.0",
        "0.0.0.0:8000",
        "[::]",
        "localhost.",
        "",
        "localhost:x",
        "localhost@evil",
        "127.0.0.1.evil",
    ],
)
def test_foreign_hosts_are_refused(path, host):
    """Another name in the Host header, or none, is refused before any route: DNS rebinding reads nothing."""
    assert decide(request(path, host)).status == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:65535", "[::1]:8000", "[::1]"])
def test_own_hosts_are_answered(host):
    """The names of loopback are answered, with and without a port."""
    assert decide(request(host=host)).status == 200


def test_two_hosts_are_refused():
    """A request with two Host headers is refused, as is one with an absolute address as its path."""
    assert decide(request(host="localhost\r\nHost: localhost")).status == 421
    assert decide(request("http://localhost/metrics")).status == 400


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:9"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Sec_Fetch_Site": "none"}, 200),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
    ],
)
def test_pages_of_other_origins_are_refused(headers, expected):
    """What a page of another origin sends is refused, `null` included."""
    assert decide(request(**headers)).status == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (request(method="POST", Content_Length="0"), 405),
        (request(method="DELETE"), 405),
        (request(Content_Length="5"), 400),
        (request(Transfer_Encoding="chunked"), 400),
        (b"GET /metrics HTTP/2\r\nHost: localhost\r\n\r\n", 505),
        (b"GET /metrics\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 100 + b"\r\n", 400),
        (request("/../etc/passwd"), 404),
        (request("/metrics/"), 404),
    ],
)
def test_other_requests_are_refused(data, expected):
    """Methods, bodies, versions, paths and headers that this page has no use for are refused."""
    assert decide(data).status == expected


@given(data=st.binary(max_size=200))
def test_any_bytes_get_an_answer(data):
    """Whatever bytes come as a request, there is an answer, and never the page without a proper Host."""
    reply = decide(data + b"\r\n\r\n")
    assert reply.status in {200, 400, 403, 404, 405, 421, 505}
    assert reply.status != 200 or b"host" in data.lower()


def test_token_guards_what_others_can_reach():
    """With a token only its bearer is answered; wrong ones are counted and then slowed down."""
    rules = Rules("0.0.0.0", "secret-of-128-bits", "node7")
    good = {"Authorization": "Bearer secret-of-128-bits"}
    assert decide(request(host="node7:8000", **good), rules).status == 200
    assert decide(request(host="10.0.0.5:8000", **good), rules, local="10.0.0.5").status == 200
    assert decide(request(host="10.0.0.6", **good), rules, local="10.0.0.5").status == 421
    refused = [
        decide(request(Authorization=f"Bearer {guess}"), rules, now=guess).status for guess in range(GUESSES + 1)
    ]
    assert refused == [401] * GUESSES + [429]
    assert decide(request(), rules, now=1000.0).status == 401
    assert decide(request(**good), rules, now=1000.0).status == 200


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.0.0.5", "example.org", "127.0.0.1.example.org", "127.evil.0.1"]
)
def test_other_addresses_need_a_token(host):
    """Listening where others can connect is refused without a token, with what to do instead."""
    with pytest.raises(UsageError, match="give a token"):
        Endpoint(page, host=host)


@pytest.mark.promise("S0-038")
def test_only_loopback_listens(endpoint):
    """By default only 127.0.0.1 is listened on."""
    assert endpoint._socket.getsockname() == ("127.0.0.1", endpoint.port)
    assert endpoint.target == f"127.0.0.1:{endpoint.port}"
    assert min(endpoint.descriptors()) >= 0


@pytest.mark.promise("S0-037")
def test_next_free_port_is_taken():
    """A port in use is no error: the next free one is used."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        second = Endpoint(page, port=taken)
    assert second.port != taken
    second.close()


def test_impossible_address_is_an_error():
    """An address that is not of this machine, or no port at all, is an error that says what to do."""
    with pytest.raises(StepscopeError, match=r"choose another address"):
        Endpoint(page, host="192.0.2.1", port=0, token="t" * 32)
    with pytest.raises(StepscopeError, match=r"choose another address"):
        Endpoint(page, host="no such host", port=0, token="t" * 32)


def test_slow_clients_are_let_go(endpoint, clock):
    """A client that does not finish its request in time is let go, and others are served meanwhile."""
    with connect(endpoint) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        assert status(ask(endpoint, request())) == 200
        clock.now = SECONDS + 1
        endpoint.poll()
        assert slow.recv(1) == b""


def test_long_requests_are_refused(endpoint):
    """A request of more than 8 KiB is refused, and not kept."""
    assert status(ask(endpoint, b"GET /" + b"a" * REQUEST_BYTES)) == 431


def test_number_of_clients_is_bounded(endpoint, clock):
    """Of more clients than the limit, the one that has waited longest gives way, and a scrape still works."""
    clients = []
    for _ in range(CONNECTIONS + 5):
        clock.now += 0.01
        clients.append(connect(endpoint))
        endpoint.poll()
    assert len(endpoint._open) == CONNECTIONS
    assert status(ask(endpoint, request())) == 200
    for client in clients:
        client.close()
    until(lambda: endpoint.poll() or endpoint._open == {}, "the end of all connections")


def test_client_that_leaves_is_forgotten(endpoint):
    """A client that goes away in the middle of anything leaves nothing open."""
    for data in (b"", b"GET", request()):
        with connect(endpoint) as client:
            client.sendall(data)
        for _ in range(5):
            endpoint.poll()
    assert until(lambda: endpoint.poll() or endpoint._open == {}, "the end of all connections")


def test_large_pages_are_sent_in_parts(clock):
    """A page that does not fit the socket's buffer is sent as the client reads it, without blocking the loop."""
    body = b"x 1\n" * 2_000_000
    endpoint = Endpoint(lambda _: ("text/plain", body), port=0, clock=clock)
    assert ask(endpoint, request()).endswith(body[-100:])
    with connect(endpoint) as client:  # asks, reads nothing, and costs nothing
        client.sendall(request())
        for _ in range(5):
            endpoint.poll()
        clock.now = SECONDS + 1
        endpoint.poll()
        assert endpoint._open == {}
    endpoint.close()


def test_failing_page_is_an_answer(clock):
    """A page that cannot be made is answered by 500 without its reason, and the loop goes on."""

    def fail(_):
        raise RuntimeError("the reason")

    endpoint = Endpoint(fail, port=0, clock=clock)
    reply = ask(endpoint, request())
    endpoint.close()
    assert (status(reply), endpoint.failures) == (500, 1)
    assert b"reason" not in reply


def test_poll_waits_as_long_as_it_is_told():
    """With nobody there, poll is a sleep."""
    endpoint = Endpoint(page, port=0)
    before = prometheus_server.time.monotonic()
    endpoint.poll(0.05)
    assert prometheus_server.time.monotonic() - before >= 0.05
    endpoint.close()
    endpoint.close()


def test_targets_file_names_the_port(tmp_path):
    """The file for Prometheus has the target, appears whole, is private, and goes when it is still ours."""
    path = tmp_path / "targets" / "run-1.json"
    file = TargetsFile(path, "127.0.0.1:8001", {"run": "run-1"})
    assert json.loads(path.read_text()) == [
        {"targets": ["127.0.0.1:8001"], "labels": {"__meta_stepscope_run": "run-1"}}
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["run-1.json"]
    later = TargetsFile(path, "127.0.0.1:8002", mode=0o644)
    file.remove()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    later.remove()
    later.remove()
    assert os.listdir(path.parent) == []


def test_targets_file_may_be_impossible(tmp_path):
    """A folder that cannot be made is the caller's to tell."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        TargetsFile(tmp_path / "file" / "x.json", "127.0.0.1:1")
