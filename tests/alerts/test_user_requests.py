from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.alerts.user_requests import LASTS, Inbox, ask
from stepscope.core.errors import UsageError

NOW = 1_700_000_000.0


def test_every_watcher_sees_every_request_once(tmp_path):
    """Two inboxes of one run each get what was asked for; the second look brings nothing."""
    name = ask(tmp_path, {"do": "acknowledge", "alert": "a1", "by": "me"}, NOW)
    ask(tmp_path, {"do": "silence", "rule": "gpu_*", "seconds": 60}, NOW + 1)
    for inbox in (Inbox(tmp_path), Inbox(tmp_path)):
        first, second = inbox.new(NOW + 2)
        assert (first.id, first.do, first.facts["alert"], first.facts["by"]) == (name, "acknowledge", "a1", "me")
        assert (second.do, second.facts["until"]) == ("silence", NOW + 61)
        assert inbox.new(NOW + 3) == []


def test_requests_go_after_an_hour(tmp_path):
    """What every watcher has had time to see is removed, and a late one does not act on it."""
    ask(tmp_path, {"do": "test"}, NOW)
    inbox = Inbox(tmp_path)
    assert len(inbox.new(NOW)) == 1
    assert inbox.new(NOW + LASTS + 10) == []
    assert list((tmp_path / "requests").iterdir()) == []
    ask(tmp_path, {"do": "test"}, NOW)
    assert Inbox(tmp_path).new(NOW + LASTS + 10) == []


def test_a_silence_survives_a_watcher_that_is_started_again(tmp_path):
    """As long as it lasts, whoever watches the run learns of it."""
    ask(tmp_path, {"do": "silence", "rule": "x", "seconds": 3 * LASTS}, NOW)
    assert [request.do for request in Inbox(tmp_path).new(NOW + 2 * LASTS)] == ["silence"]
    assert Inbox(tmp_path).new(NOW + 4 * LASTS) == []


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"do": "x"},
        {"do": "acknowledge"},
        {"do": "silence", "rule": "a", "seconds": -1},
        {"do": "silence", "rule": ""},
    ],
)
def test_what_is_no_request_is_refused(tmp_path, facts):
    """Before anything is written."""
    with pytest.raises(UsageError):
        ask(tmp_path, facts)
    assert not (tmp_path / "requests").exists()


@given(st.binary(max_size=200))
def test_files_of_others_do_no_harm(tmp_path_factory, data):
    """Whatever lies in the folder, an inbox returns requests or nothing."""
    run = tmp_path_factory.mktemp("run")
    (run / "requests").mkdir()
    (run / "requests" / "1-9999999999999-x.json").write_bytes(data)
    (run / "requests" / "2-9999999999999-x.json").symlink_to("/etc/passwd")
    assert Inbox(run).new(NOW) == []
