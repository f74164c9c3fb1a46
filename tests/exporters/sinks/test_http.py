"""The client of sinks over HTTP: deadlines, what an answer means, credentials."""

from __future__ import annotations

import base64
import contextlib
import socket
import time
from email.message import Message
from urllib.parse import urlsplit

import pytest

from stepscope.exporters.sinks.http import Answer, HttpClient, is_page, judge
from stepscope.exporters.sinks.sink import SinkDeniesError, SinkDownError, SinkRefusesError
from tests.exporters.sinks.web_server import Reply, WebServer


@contextlib.contextmanager
def client_of(server, user="", environ=None, **options):
    target = urlsplit(server.url.replace("://", f"://{user}@") if user else server.url)
    client = HttpClient(target, environ or {"HOME": "/nowhere"}, **options)
    try:
        yield client
    finally:
        client.close()


def get(server, **options):
    with client_of(server, **options) as client:
        return client.get("/")


def answer(status, body=b"", **headers):
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return Answer(status, message, body)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (301, SinkDeniesError),
        (400, SinkRefusesError),
        (401, SinkDeniesError),
        (403, SinkDeniesError),
        (404, SinkDeniesError),
        (408, SinkDownError),
        (413, SinkRefusesError),
        (422, SinkRefusesError),
        (429, SinkDownError),
        (500, SinkDownError),
        (503, SinkDownError),
    ],
)
def test_a_status_means_try_again_never_or_not_for_us(status, error):
    """5xx and 429 are tried again, other 4xx are not, and those about who we are wait for a change."""
    with pytest.raises(error, match=str(status)):
        judge(answer(status))


def test_a_taken_request_raises_nothing():
    """Any status from 200 to 299 is success."""
    for status in (200, 202, 204, 299):
        judge(answer(status))


def test_the_wait_that_a_server_asks_for_is_kept():
    """Retry-After comes with the error."""
    with pytest.raises(SinkDownError) as caught:
        judge(answer(503, Retry_After="7"))
    assert caught.value.retry_after == 7.0


def test_the_text_of_a_server_is_quoted_on_one_line_but_a_page_is_not():
    """People see the reason that a server gives, and no HTML."""
    with pytest.raises(SinkRefusesError, match=r"answered 400: bad value$"):
        judge(answer(400, b"bad\n value\n"))
    with pytest.raises(SinkDownError, match=r"answered 502$"):
        judge(answer(502, b"<html><body>Bad gateway</body></html>"))


def test_a_page_is_told_from_an_answer():
    """A proxy's login page is a page, whatever its type says."""
    assert is_page(answer(200, b"<!DOCTYPE html><html>", Content_Type="text/plain"))
    assert is_page(answer(200, b"", Content_Type="text/html; charset=utf-8"))
    assert not is_page(answer(200, b"{}", Content_Type="application/json"))


def test_requests_share_a_connection_and_carry_the_path_and_the_body():
    """The path of the address comes before that of the request."""
    with WebServer() as server:
        client = HttpClient(urlsplit(f"{server.url}/base/"), {"HOME": "/nowhere"})
        assert client.post("/one?a=b", b"x", {"X-Own": "1"}).body == b"{}"
        client.get("/two")
        assert [request[:2] for request in server.requests] == [("POST", "/base/one?a=b"), ("GET", "/base/two")]
        assert server.requests[0][2]["X-Own"] == "1"
        assert server.connections == 1
        client.close()


def test_a_connection_that_the_server_closed_while_idle_is_made_again():
    """A kept connection may be gone: the request is made once more on a new one."""
    with WebServer(Reply(), Reply(how="cut"), Reply()) as server, client_of(server) as client:
        assert not client.get("/").is_second
        again = client.get("/")
        assert (again.status, again.is_second) == (200, True)


def test_a_cut_connection_is_a_sink_that_is_down():
    """Without an answer nobody knows whether the request was handled: it is tried again later."""
    with WebServer(Reply(how="cut")) as server, pytest.raises(SinkDownError):
        get(server)


def test_half_an_answer_is_no_answer():
    """An answer that ends before its announced length is not taken for success."""
    with WebServer(Reply(how="half", body=b"abc")) as server, pytest.raises(SinkDownError):
        get(server)


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_a_call_has_a_deadline_for_all_of_it(how):
    """A server that is silent, or sends one byte at a time for ever, is left when the time is up."""
    with WebServer(Reply(how=how, body=b"x" * 1000)) as server:
        began = time.monotonic()
        with client_of(server) as client, pytest.raises(SinkDownError, match="no answer in time"):
            client.request("GET", "/", None, {}, 0.2)
        assert time.monotonic() - began < 20
        server.released.set()


def test_a_port_without_a_server_is_a_sink_that_is_down():
    """A refused connection names the reason, and not the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SinkDownError, match="the connection was refused") as caught:
        HttpClient(urlsplit(f"http://127.0.0.1:{port}"), {"HOME": "/nowhere"}).get("/")
    assert str(port) not in str(caught.value)


def basic(user, password):
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def test_credentials_come_from_the_address_else_from_netrc(tmp_path):
    """The address wins over netrc, and what the caller gives wins over both."""
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login anna password pw\n")
    netrc.chmod(0o600)
    environ = {"HOME": str(tmp_path)}
    with WebServer() as server:
        get(server, environ=environ)
        get(server, user="bob:p%40ss", environ=environ)
        get(server, environ=environ, headers={"Authorization": "Bearer t"})
        found = [request[2]["Authorization"] for request in server.requests]
    assert found == [basic("anna", "pw"), basic("bob", "p@ss"), "Bearer t"]


def test_no_error_holds_a_secret_that_a_server_sends_back():
    """A server that quotes our credentials does not bring them into a message."""
    with (
        WebServer(
            lambda handler, _: Reply(400, f"you sent {handler.headers['Authorization']} or s3cret".encode())
        ) as server,
        pytest.raises(SinkRefusesError) as caught,
    ):
        get(server, user="bob:s3cret")
    assert "s3cret" not in str(caught.value)
    assert basic("bob", "s3cret").split()[1] not in str(caught.value)
    assert "[redacted]" in str(caught.value)


def test_a_secret_with_a_line_break_is_refused_and_not_quoted():
    """A token that was read with more than one line is no header, and stays out of the message."""
    with WebServer() as server, pytest.raises(SinkDeniesError) as caught:
        get(server, headers={"Authorization": "Bearer t0ken\nmore"})
    assert "t0ken" not in str(caught.value)


def test_a_proxy_of_the_environment_is_used_unless_the_host_is_excepted():
    """HTTP_PROXY and NO_PROXY mean what they mean for other programs."""
    with WebServer(Reply(407)) as proxy, WebServer() as server:
        environ = {"HOME": "/nowhere", "HTTP_PROXY": proxy.url}
        with pytest.raises(SinkDeniesError, match="407"):
            get(server, environ=environ)
        assert proxy.requests[0][1] == f"{server.url}/"
        assert get(server, environ={**environ, "NO_PROXY": "127.0.0.1"}).status == 200


def test_certificates_that_cannot_be_read_are_a_reason(tmp_path):
    """A wrong path of trusted certificates is named."""
    client = HttpClient(urlsplit("https://127.0.0.1:9"), {"HOME": "/nowhere"}, ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(SinkDeniesError, match=r"none\.pem cannot be read"):
        client.get("/")
