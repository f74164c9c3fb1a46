"""The sinks of a run as screens show them."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from stepscope.store.sinks import DENIED, DONE, QUIET, SENDING, WAITING, SinkState, lock_path
from stepscope.views.sinks import LATE, TONES, behind_text, sink_rows
from stepscope.web.responses import SinkRow, encoded
from tests.exporters.recorded import make_run


def saved(folder, node="node-a", key="mlflow-12345678", **facts):
    """Write the state of a sink and a node."""
    SinkState(node, key, **{"name": "mlflow", "kind": "mlflow", **facts}).save(folder)


def test_a_run_without_sinks_has_none(tmp_path):
    """Nothing is shown where no sender has written."""
    assert sink_rows(make_run(tmp_path)) == []


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"state": SENDING, "behind_rows": 9, "behind_seconds": LATE - 1}, "keeping up"),
        ({"state": SENDING, "behind_rows": 9, "behind_seconds": LATE}, "catching up"),
        ({"state": WAITING, "why": "the connection was refused"}, "not answering"),
        ({"state": SENDING, "behind_rows": 9, "behind_seconds": 119.0, "interval": 60.0}, "keeping up"),
        ({"state": SENDING, "behind_rows": 9, "behind_seconds": 120.0, "interval": 60.0}, "catching up"),
        ({"state": WAITING}, "catching up"),
        ({"state": DENIED, "why": "the server answered 401"}, "denied"),
        ({"state": DONE}, "done"),
        ({"state": "of the future"}, "catching up"),
    ],
)
def test_states_in_words(tmp_path, facts, word):
    """Each state has its word; a sink that nobody has asked yet is not said to be silent."""
    folder = make_run(tmp_path)
    saved(folder, **facts)
    [row] = sink_rows(folder)
    assert (row["state"], row["tone"]) == (word, TONES[word])


def test_nodes_are_merged(tmp_path):
    """Rows are added up, the delay is the longest, and the node that is worst off gives state and reason."""
    folder = make_run(tmp_path)
    common = {"behind_rows": 5, "sent_rows": 1000, "refused_rows": 1}
    saved(
        folder, "a", state=SENDING, behind_seconds=2.0, since=10.0, known={"link": "https://ml.example/run/1"}, **common
    )
    saved(folder, "b", state=WAITING, behind_seconds=70.0, since=20.0, why="it does not answer", **common)
    saved(folder, "a", "wandb-0", name="wandb", state=DONE)
    rows = sink_rows(folder)
    assert [row["name"] for row in rows] == ["mlflow", "wandb"]
    first = rows[0]
    assert (first["state"], first["why"], first["since"], first["nodes"]) == (
        "not answering",
        "it does not answer",
        20.0,
        2,
    )
    assert behind_text(first) == "10 rows, 1 min 10 s"
    assert (first["sent_rows"], first["refused_rows"]) == (2000, 2)
    assert first["link"] == "https://ml.example/run/1"
    assert behind_text(rows[1]) == "nothing"


@pytest.mark.parametrize(
    "link",
    [
        "javascript:alert(1)",
        "data:text/html,<script>alert(1)</script>",
        "file:///etc/passwd",
        "https://user:password@ml.example/",
        "https://ml.example/\n<b>",
        "http://[broken",
        "//ml.example",
        "https://" + "a" * 3000,
        7,
    ],
)
def test_only_web_addresses_are_links(tmp_path, link):
    """A link of any other kind, or with a password, is left out."""
    folder = make_run(tmp_path)
    saved(folder, known={"link": link})
    assert sink_rows(folder)[0]["link"] == ""


def test_any_file_is_plain_data(tmp_path):
    """Damaged files and absurd numbers give rows that the page can read."""
    folder = make_run(tmp_path)
    place = folder.path / "sinks" / "odd"
    place.mkdir(parents=True)
    (place / "a.json").write_text(
        '{"sent_rows": 9223372036854775807, "behind_rows": -5, "behind_seconds": NaN, "known": 3'
    )
    (place / "b.json").write_text(
        json.dumps({"sent_rows": 2**63 - 1, "behind_rows": -5, "since": -1, "name": "x" * 9999})
    )
    (place / "c.json").write_text(json.dumps({"sent_rows": 2**63 - 1, "behind_seconds": 7, "state": ["x"]}))
    [row] = sink_rows(folder)
    assert (row["behind_rows"], row["behind_seconds"], row["sent_rows"], row["since"]) == (0, 7.0, 2**53, None)
    assert len(row["name"]) == 500
    assert set(json.loads(encoded(row))) == set(SinkRow.__struct_fields__)


def test_a_sink_that_nobody_sends_to_any_more_is_stopped(tmp_path):
    """What a killed sender wrote last is not the present; the sink of a sender that is only quiet keeps its word."""
    folder = make_run(tmp_path)
    saved(folder, state=SENDING, time=time.time() - 2 * QUIET)
    path = lock_path(folder, "mlflow-12345678", "node-a")
    path.touch()
    [row] = sink_rows(folder)
    assert (row["state"], row["tone"]) == ("stopped", "warn")
    assert "stepscope export RUN --to URL" in row["why"]
    assert behind_text(row) == "unknown"
    code = "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, 2); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        assert sink_rows(folder)[0]["state"] == "keeping up"
        holder.communicate(b"\n")
