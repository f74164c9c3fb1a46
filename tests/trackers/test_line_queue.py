from __future__ import annotations

import json
import os
import threading

from stepscope.exporters.files.jsonl_log import JsonLines
from stepscope.trackers.work_queue import LineQueue
from tests.trackers.machines import wait_until


def rows(folder):
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def queue_of(folder, said=None, **more):
    return LineQueue(JsonLines(folder, "rows"), (said if said is not None else []).append, **more)


class Late:
    """A value that arrives when told; reading it may fail."""

    def __init__(self, value):
        self.value, self.there, self.asked = value, threading.Event(), threading.Event()

    def ready(self):
        self.asked.set()
        return self.there.is_set()

    def read(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_rows_are_written_in_order_as_they_come(tmp_path):
    """Each row is in the file soon after it was handed over; closing leaves none behind."""
    queue = queue_of(tmp_path)
    queue.put({"n": 0})
    wait_until(lambda: len(list(tmp_path.iterdir())) == 1 and len(rows(tmp_path)) == 1)
    for number in range(1, 50):
        queue.put({"n": number})
    queue.close()
    assert [row["n"] for row in rows(tmp_path)] == list(range(50))


def test_a_row_waits_for_its_values_and_nobody_else_does(tmp_path):
    """Handing over returns at once; the row is written when its value has arrived."""
    queue, loss = queue_of(tmp_path), Late(0.5)
    queue.put({"n": 0, "loss": None}, {"loss": loss})
    queue.put({"n": 1})
    assert not list(tmp_path.iterdir())
    loss.there.set()
    queue.close()
    assert rows(tmp_path) == [{"n": 0, "loss": 0.5}, {"n": 1}]


def test_a_value_that_fails_or_never_comes_is_null(tmp_path):
    """The row is written all the same."""
    queue, broken = queue_of(tmp_path), Late(RuntimeError("device lost"))
    broken.there.set()
    queue.put({"loss": None, "norm": None}, {"loss": broken, "norm": Late(1.0)})
    queue.close()
    assert rows(tmp_path) == [{"loss": None, "norm": None}]


def test_too_many_rows_are_dropped_and_counted(tmp_path):
    """A writer that cannot keep up never makes the training wait."""
    said, late = [], Late(1.0)
    queue = queue_of(tmp_path, said, limit=2)
    queue.put({"n": 0}, {"x": late})
    assert late.asked.wait(60)
    for number in range(1, 6):
        queue.put({"n": number})
    late.there.set()
    queue.close()
    assert (queue.dropped, [row["n"] for row in rows(tmp_path)]) == (3, [0, 1, 2])
    assert said[0].startswith("cannot keep up with the steps")


def test_a_forked_child_writes_to_a_file_of_its_own(tmp_path):
    """Rows of parent and child never meet."""
    queue = queue_of(tmp_path)
    queue.put({"who": "parent"})
    child = os.fork()
    if not child:
        queue.put({"who": "child"})
        queue.close()
        os._exit(0)
    os.waitpid(child, 0)
    queue.close()
    assert sorted(row["who"] for row in rows(tmp_path)) == ["child", "parent"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_cannot_be_is_told(tmp_path):
    """The error goes to whoever reports, not to the training."""
    (tmp_path / "file").write_text("")
    said = []
    queue = queue_of(tmp_path / "file", said)
    queue.put({"n": 0})
    queue.close()
    assert len(said) == 1
    assert said[0].startswith("cannot write rows")
