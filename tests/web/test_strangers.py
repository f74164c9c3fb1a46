"""Another user of the same machine, with a real second uid: what reaches the port gets nothing without the token."""

from __future__ import annotations

import json
import os
import pwd
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.core.access import is_loopback, kept_token, new_token, token_path, write_private
from stepscope.session import page
from stepscope.web.access_policy import ADMIN, READ, AccessPolicy
from stepscope.web.server import Server, ServerOptions
from tests.integration.processes import until
from tests.web.served import DATA, RUN, Client, ready, started

pytestmark = pytest.mark.processes

ATTACK = """
import json, os, socket, sys
port, run, token_file = int(sys.argv[1]), sys.argv[2], sys.argv[3]
assert os.getuid() != int(sys.argv[4])
def ask(family, address):
    with socket.socket(family) as link:
        link.settimeout(60)
        link.connect((address, port))
        link.sendall(f"GET /api/runs HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\nConnection: close\\r\\n\\r\\n".encode())
        found = b""
        while part := link.recv(65536):
            found += part
    return int(found.split()[1]), "mnist" in found.decode("latin-1")
def readable(path):
    try:
        return open(path).read()
    except OSError:
        return None
body = json.dumps({"run": run, "action": "silence", "rule": "*", "seconds": 3600}).encode()
head = (f"POST /api/alerts HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\nOrigin: http://127.0.0.1:{port}\\r\\n"
        f"Content-Type: application/json\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n").encode()
for _ in range(50):
    link = socket.create_connection(("127.0.0.1", port))
    link.sendall(head + body)
    link.close()
print(json.dumps({
    "mapped": ask(socket.AF_INET6, "::ffff:127.0.0.1"),
    "plain": ask(socket.AF_INET, "127.0.0.1"),
    "token": readable(token_file),
}))
"""
"""What got past the kernel's tables: a mapped address, and sockets closed at once, which they list as root's."""


def other_user():
    """Return the id of a user that is not this one, and a Python that it can start."""
    if os.getuid() != 0:
        pytest.skip("needs root to act as a second user")
    found = pwd.getpwnam("nobody").pw_uid
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            subprocess.run([python, "-I", "-c", ""], user=found, group=found, extra_groups=[], cwd="/", check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return found, python
    pytest.skip("needs a Python that another user can start")


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6 for a mapped address")
def test_another_user_gets_in_by_no_known_way(root):
    """Neither a mapped address nor a socket closed at once reads runs, silences alerts, or finds the token."""
    user, python = other_user()
    server = started(root)
    try:
        ready(server)
        before = server.site.traffic.refusals
        words = [python, "-I", "-c", ATTACK, str(server.port), RUN, str(token_path(server.port)), str(os.getuid())]
        as_other = {"user": user, "group": user, "extra_groups": [], "cwd": "/"}
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120, **as_other)
        found = json.loads(said.stdout)
        assert found == {"mapped": [401, False], "plain": [401, False], "token": None}
        until(lambda: server.site.traffic.refusals - before == 52, "every order of the stranger, refused")
    finally:
        server.stop()


def test_every_route_of_data_asks_for_the_token_on_loopback(server):
    """On this machine, too, nothing but the page's own files and /healthz is answered without the token."""
    stranger = Client(server.port)
    assert {path: stranger.get(path).status for path in DATA} == dict.fromkeys(DATA, 401)
    assert stranger.post("/api/alerts", {"run": RUN, "action": "test"}).status == 401
    assert {stranger.get(path).status for path in ("/", "/healthz")} == {200}


def test_each_start_on_loopback_has_a_token_of_its_own(tmp_path):
    """What a squatter on a port learns after the server's end opens no later server; the token's file ends with it."""
    tokens = []
    for _ in range(2):
        server = Server(ServerOptions(tmp_path, port=0))
        path = token_path(server.port)
        tokens.append(server.policy.token)
        assert path.read_text().strip() == server.policy.token
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        server.stop()
        assert not path.exists()
    assert tokens[0] != tokens[1]


def test_a_server_leaves_the_token_of_its_successor(tmp_path):
    """The end of a server removes its own token only, not that of the next one on the same port."""
    server = Server(ServerOptions(tmp_path, port=0))
    write_private(token_path(server.port), "of the next one\n")
    server.stop()
    assert token_path(server.port).read_text() == "of the next one\n"


def test_a_cookie_is_of_one_start_and_one_port():
    """With the token unchanged, as on another address, a cookie still opens only the server that gave it."""
    rules = AccessPolicy("0.0.0.0", "a" * 48, 8080, start="first")
    cookie = [(b"cookie", f"stepscope-8080={rules.cookie_for(ADMIN)}".encode())]
    assert rules.scope(cookie, 0.0) == ADMIN
    for other in (
        AccessPolicy("0.0.0.0", "a" * 48, 8080, start="second"),
        AccessPolicy("0.0.0.0", "a" * 48, 8081, start="first"),
    ):
        assert other.scope([(b"cookie", cookie[0][1].replace(b"8080=", f"{other.port}=".encode()))], 0.0).status == 401


def test_a_browser_is_started_without_the_token(tmp_path):
    """--open hands the browser a private file that leads to the address: everybody can read a command line."""
    server = Server(ServerOptions(tmp_path, port=0))
    try:
        path = server.doorway()
        assert server.policy.token not in path.as_uri()
        assert f"url={server.address}" in path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        server.stop()
    assert not path.exists()


def test_the_address_to_look_is_told_where_it_is_wanted(tmp_path):
    """On loopback the address for others is printed with --token only; it holds another token than the owner's."""
    for wanted in (False, True):
        server = Server(ServerOptions(tmp_path, port=0, others=wanted))
        told = "\n".join(server.notices())
        server.stop()
        assert f"?token={server.policy.token_for(ADMIN)}" in told
        assert (f"?token={server.policy.token_for(READ)}" in told) is wanted


@pytest.mark.parametrize("private", [True, False])
def test_a_training_tells_the_token_to_its_user_only(monkeypatch, private):
    """On a terminal or in a notebook it prints the whole address; in a log, which others may read, the token's file."""
    write_private(token_path(8080), f"{new_token()}\n")
    token = kept_token(token_path(8080))
    told = page.notice_of("http://[::1]:8080/", private=private)
    assert (token in told) is private
    assert private or str(token_path(8080)) in told
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert page.is_private()


def test_tokens_are_kept_in_private_files_of_our_own(tmp_path):
    """A token of 192 bits is made once; a link is not followed, and what was open to others is closed."""
    path = tmp_path / "token"
    path.touch(mode=0o644)
    token = kept_token(path)
    assert len(bytes.fromhex(token)) == 24
    assert kept_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="link"):
        kept_token(tmp_path / "link")


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.0.0.5", "example.org", "127.0.0.1.example.org", "127.evil.0.1"]
)
def test_other_addresses_are_no_loopback(host):
    """Only 127.x.x.x, ::1 and localhost are this machine's alone."""
    assert not is_loopback(host)
    assert is_loopback("127.8.9.1")
    assert is_loopback("[::1]")


def test_nothing_hangs_on_the_tables_of_the_kernel():
    """Who may ask is decided without /proc/net, whose owners can be forged."""
    folder = Path(page.__file__).parents[1] / "web"
    asking = [
        path.name for path in folder.glob("*.py") if '"net"' in path.read_text() or "/proc/net" in path.read_text()
    ]
    assert asking == ["listening.py"]  # only to say who has a port that is taken
