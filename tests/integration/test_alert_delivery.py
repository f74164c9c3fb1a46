"""Alerts on their way to people: real notifier processes, and servers that do what servers do."""

from __future__ import annotations

import itertools
import json
import random
import time

import pytest

from stepscope.alerts.delivery.outbox import deliveries
from tests.alerts.office import Office
from tests.alerts.servers import Hook, MailServer, alert


@pytest.fixture
def made():
    """What a test has opened; all of it is closed."""
    found = []
    yield lambda one: found.append(one) or one
    for one in reversed(found):
        one.close()


def test_a_message_arrives_once_and_the_notifier_ends(made, tmp_path):
    """What is in the outbox is told, written down as told, and nobody stays behind."""
    hook = made(Hook())
    office = made(Office(tmp_path, {"url": hook.url, "secret": "s3cret", "name": "team"}))
    office.tell(alert())
    office.deliver()
    [body] = hook.bodies()
    assert body["title"] == "[warning] mnist/first: loss jumped to 0"
    assert office.states() == ["sent"]
    [row] = deliveries(office.run)
    assert (row["channel"], row["state"], row["sent"], row["waiting"]) == ("team", "sent", 1, 0)
    assert b"s3cret" not in office.written()
    assert hook.url.encode() not in office.written()
    assert office.children[0].poll() == 0
    office.tell(alert(number=1))
    office.deliver()
    assert len(hook.requests) == 2


@pytest.mark.parametrize("fault", [500, 503, "reset", (429, {"Retry-After": "2"})], ids=str)
def test_a_server_that_fails_is_asked_again(made, tmp_path, fault):
    """Later, with the same message, as late as it asks for; the failure is reported once."""
    hook = made(Hook(fault, 200))
    office = made(Office(tmp_path, hook.url))
    office.tell(alert())
    office.deliver()
    first, second = hook.requests
    assert second["time"] - first["time"] >= (2.0 if isinstance(fault, tuple) else 0.7)
    assert json.loads(first["body"])["id"] == json.loads(second["body"])["id"]
    assert office.states() == ["failed", "sent"]


def test_a_channel_that_hangs_keeps_no_other_waiting(made, tmp_path):
    """Each has a thread of its own."""
    stuck, hook = made(Hook("hang")), made(Hook())
    office = made(Office(tmp_path, stuck.url, hook.url))
    office.tell(alert())
    office.until(lambda: office.states() == ["sent"] and stuck.requests, "the message on the other channel")
    assert len(hook.requests) == 1
    rows = {row["channel"]: row["state"] for row in deliveries(office.run)}
    assert rows == {"webhook-1": "waiting", "webhook-2": "sent"}


def test_a_thousand_alerts_in_a_second_are_a_few_messages(made, tmp_path):
    """At most one message a second; none of the alerts is lost."""
    hook = made(Hook())
    office = made(Office(tmp_path, hook.url))
    for batch in range(10):
        office.tell(*(alert(number=100 * batch + number) for number in range(100)))
        office.poll()
    office.deliver()
    names = [one["alert"] for body in hook.bodies() for one in body["alerts"]]
    assert len(names) == len(set(names)) == 1000
    assert len(hook.requests) < 10
    times = [request["time"] for request in hook.requests]
    if len(office.children) == 1:  # a second one, where all was told before the next batch, begins at once
        assert all(later - earlier >= 1.0 for earlier, later in itertools.pairwise(times))


@pytest.mark.promise("S0-057", "X-11")
def test_mail_with_starttls_and_login(made, tmp_path, monkeypatch):
    """The server demands both, its certificate is verified, and the password is in no file of the run."""
    server = made(MailServer(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
    monkeypatch.setenv("MAIL_URL", server.url())
    office = made(Office(tmp_path, {"url": "${MAIL_URL}", "name": "mail"}, probe=True))
    office.tell(alert(text="loss <b>jumped</b>\r\nBcc: all@example.com"))
    office.until(lambda: "ready" in office.states() and "sent" in office.states(), "a mail")
    [mail] = server.box.mails
    assert set(server.box.logins) == {(server.user, server.password)}
    assert mail["to"] == ["you@example.com"]
    assert mail["mail"]["Subject"] == "[warning] mnist/first: loss <b>jumped</b> Bcc: all@example.com"
    assert mail["mail"]["Bcc"] is None
    assert "&lt;b&gt;jumped" in server.box.html()
    assert "lower the learning rate" in server.box.html()
    assert server.password.encode() not in office.written()


def test_what_is_wrong_with_a_mail_server_is_said_at_the_start(made, tmp_path, monkeypatch):
    """A wrong password, an untrusted certificate, a closed port, a variable that is not set."""
    server = made(MailServer(tmp_path))
    closed = "mailtos://a:b@localhost:9?mode=starttls&smtp=localhost&to=a@b.c"
    office = made(Office(tmp_path, server.url(), closed, "${NOT_SET}", probe=True))
    office.until(lambda: len(office.reports) == 3, "three reports")
    assert office.states() == ["unreachable"] * 3
    whys = [report["why"] for report in office.reports]
    assert "certificate is not trusted" in whys[0]
    assert "refused" in whys[1].lower()
    assert "the variable NOT_SET is not set" in whys[2]
    monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
    other = made(Office(tmp_path / "b", server.url("wr0ng-secret"), probe=True))
    other.until(lambda: other.reports, "a report")
    assert other.reports[0]["why"] == "the mail server refused user or password (535)"
    assert b"wr0ng-secret" not in other.written()


def test_a_mail_server_that_fails_for_a_while(made, tmp_path, monkeypatch):
    """A temporary refusal is tried again, and its cause is known."""
    server = made(MailServer(tmp_path))
    server.box.refuse.append("451 try later")
    monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
    office = made(Office(tmp_path, server.url()))
    office.tell(alert())
    office.deliver()
    assert office.states() == ["failed", "sent"]
    assert "451" in office.reports[0]["why"]
    assert len(server.box.mails) == 1


def test_servers_that_the_configuration_names_need_no_further_word(made, tmp_path):
    """A webhook on this machine is told without alerting.private_addresses, by us and by apprise."""
    hook = made(Hook())
    office = made(Office(tmp_path, hook.url, f"json://127.0.0.1:{hook.port}", private_addresses=False))
    office.tell(alert())
    office.deliver()
    assert office.states() == ["sent", "sent"]
    assert len(hook.requests) == 2


def test_where_clouds_keep_credentials_nothing_is_sent(made, tmp_path):
    """A metadata address is refused although the configuration names it, and the report says so."""
    office = made(Office(tmp_path, "http://169.254.169.254/latest", private_addresses=True))
    office.tell(alert())
    office.until(lambda: len(office.states()) == 1, "a failure")
    assert "169.254.169.254 is refused: it is link-local" in office.reports[0]["why"]


def test_apprise_honours_redirects_and_retry_after_as_we_do(made, tmp_path):
    """Rule S19: no redirect is followed; what a server asks for is waited for, whichever service it is."""
    hook = made(Hook((302, {"Location": "/elsewhere"}), (429, {"Retry-After": "3"}), 200))
    office = made(Office(tmp_path, f"json://127.0.0.1:{hook.port}/x"))
    office.tell(alert())
    office.deliver()
    assert [request["path"] for request in hook.requests] == ["/x"] * 3
    assert hook.requests[2]["time"] - hook.requests[1]["time"] >= 3.0
    assert "302" in office.reports[0]["why"]


def test_a_notifier_that_is_killed_at_any_moment_loses_nothing(made, tmp_path):
    """Each alert is delivered, and none more than twice; `python -m bench notifying` does it a hundred times."""
    hook = made(Hook())
    office = made(Office(tmp_path, hook.url))
    dice = random.Random(7)
    for number in range(12):
        office.tell(alert(number=number))
        deadline = time.monotonic() + dice.uniform(0.0, 0.3)
        while time.monotonic() < deadline:
            office.poll()
            time.sleep(0.002)
        office.kill()
        office.deliver()
    found = [one["alert"] for body in hook.bodies() for one in body["alerts"]]
    counts = {name: found.count(name) for name in found}
    assert set(counts) == {f"loss_spike-{number}" for number in range(12)}
    assert max(counts.values()) <= 2


def test_a_watcher_that_was_killed_is_followed_by_one_that_goes_on(made, tmp_path):
    """What the first had put into the outbox and nobody was told is told by the next, and nothing twice."""
    hook = made(Hook((503, {"Retry-After": "25"}), 200))  # the first one is killed while it waits
    office = made(Office(tmp_path, hook.url))
    office.tell(alert())
    office.until(lambda: hook.requests, "a first try")
    office.kill()
    office.begin()
    office.deliver()
    assert len(hook.bodies(200)) == 1


def test_a_notifier_outlives_its_watcher(made, tmp_path):
    """A message that cannot be delivered yet is delivered although nobody is left to supervise that."""
    hook = made(Hook(500, 200))
    office = made(Office(tmp_path, hook.url))
    office.tell(alert())
    office.until(lambda: hook.requests, "a first try")
    office.notifying.close()
    hook.wait(2)
    assert len(hook.bodies(200)) == 1


def test_a_full_disk_is_no_reason_to_be_silent(made, tmp_path, monkeypatch):
    """Alerts that cannot be written go to the notifier directly, and nobody hears of them twice."""
    from stepscope.alerts.delivery import outbox

    hook = made(Hook())
    office = made(Office(tmp_path, hook.url))
    with monkeypatch.context() as full:
        full.setattr(outbox, "append_lines", lambda *_, **_more: (_ for _ in ()).throw(OSError(28, "no space")))
        office.tell(alert())
        office.until(lambda: hook.requests, "the message")
    office.deliver()
    assert len(hook.requests) == 1
