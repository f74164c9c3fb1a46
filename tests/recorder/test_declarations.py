from __future__ import annotations

import errno
import os
import threading

import pytest

from stepscope.core.columns import decode_entries
from stepscope.core.records import FIRST_SCHEMA, MAX_SCHEMAS
from stepscope.recorder import declarations, intake
from tests.recorder.rig import Rig


def entries(rig):
    data = rig.schema.read_bytes()
    found, used = decode_entries(data)
    assert used == len(data)
    return found


def test_declared_before_the_first_row(rig):
    """Columns stand in the schema file before the ring has a row that uses them, and once."""
    order = []
    true = rig.run._write
    rig.run._write = lambda *row: order.append(len(entries(rig))) or true(*row)
    rig.run.log({"a": 1, "b": 2})
    rig.run.log({"a": 1, "b": 2})
    assert set(order) == {1}
    assert entries(rig) == [{"id": FIRST_SCHEMA, "kinds": "dd", "names": ["a", "b"]}]


def test_order_of_names_is_a_schema(rig):
    """The same names in another order, or with other kinds, are another schema."""
    rig.run.log({"a": 1, "b": 2})
    rig.run.log({"b": 1, "a": 2})
    assert [row for _, row in rig.rows()] == [{"a": 1, "b": 2}, {"b": 1, "a": 2}]
    assert len(entries(rig)) == 2


def test_a_file_of_the_program_under_our_number_is_left_alone(rig, tmp_path):
    """A program that closes all files, as daemons do, and opens its own: we neither write into it nor close it."""
    mine = os.open(tmp_path / "checkpoint", os.O_RDWR | os.O_CREAT)
    rig.run.log({"a": 1})
    number = rig.declarations._descriptor
    os.dup2(mine, number)
    rig.run.log({"b": 2})
    rig.declarations.close()
    assert os.fstat(number).st_size == 0
    assert [row for _, row in rig.rows()] == [{"a": 1}]
    os.close(number)
    os.close(mine)


def test_pairs_past_the_last_schema(tmp_path):
    """Past 1 024 schemas rows are written as pairs of name and value, steps and all, and read the same."""
    rig = Rig(tmp_path, 1 << 20)
    for number in range(MAX_SCHEMAS):
        rig.run.log({f"n{number}": number})
    rig.run.log({"x": 1.0, "y": 2.0, "z": 3.0})
    rig.run.log({"y": 4.0, "w": 5.0})
    rig.run.log({"n7": 7.5})
    with rig.run.step(samples=3), rig.run.phase("forward"):
        pass
    *_, first, second, known, step = rig.rows()
    assert (first[1], second[1], known[1]) == ({"x": 1.0, "y": 2.0, "z": 3.0}, {"y": 4.0, "w": 5.0}, {"n7": 7.5})
    assert [schema for schema, *_ in rig.records()][-4:] == [1, 1, FIRST_SCHEMA + 7, 1]
    assert list(step[1]) == ["step_seconds", "phase/other", "phase/forward", "samples"]
    assert 0 < step[1]["step_seconds"] < 60
    assert step[1]["samples"] == 3.0
    assert (rig.refused, rig.complaints()) == (0, {})


def test_too_many_names(tmp_path):
    """Past max_names rows with a new name are refused and counted; known names go on."""
    rig = Rig(tmp_path, max_names=3)
    rig.run.log({"a": 1, "b": 1})
    rig.run.log({"c": 1})
    for number in range(4):
        rig.run.log({f"new{number}": 1})
    rig.run.log({"a": 2, "b": 2})
    assert len(rig.rows()) == 3
    assert (rig.refused, rig.complaints()) == (4, {"names": 4})


def test_step_with_too_many_names(tmp_path):
    """A step whose phases are names too many is refused, counted and told."""
    rig = Rig(tmp_path, max_names=1)
    with rig.run.step():
        pass
    assert rig.rows() == []
    assert rig.refused == 1
    assert "cannot declare the phases of a step" in rig.said.getvalue()


def test_long_rows_are_split(rig):
    """A row that no record could hold is written in pieces of one step, and the count moves once."""
    rig.run.log({f"m{number}": number for number in range(1000)})
    rig.run.log({"a": 1.0})
    rig.run.log({f"m{number}": number for number in range(1000)}, step=50)
    rows = rig.rows()
    assert {name: value for step, row in rows if step == 0 for name, value in row.items()} == {
        f"m{number}": number for number in range(1000)
    }
    assert [step for step, row in rows if "a" in row] == [1]
    assert sum(len(row) for step, row in rows if step == 50) == 1000
    assert rig.refused == 0


def test_hundred_thousand_names(tmp_path):
    """Distinct names by the ten thousand are taken without a schema for each."""
    rig = Rig(tmp_path, 1 << 22)
    for number in range(20_000):
        rig.run.log({f"name{number}": number})
    rows = rig.rows()
    assert rows[-1] == (19_999, {"name19999": 19_999.0})
    assert len(rig.intake.layouts) == MAX_SCHEMAS
    assert rig.refused == 0


class Writes:
    """os.write that stops after a number of bytes with an error, or writes little at a time."""

    def __init__(self, monkeypatch, room, number=errno.ENOSPC, most=1 << 30):
        self.room, self.number, self.most, self.true = room, number, most, os.write
        monkeypatch.setattr(declarations.os, "write", self)

    def __call__(self, descriptor, data):
        if self.room <= 0:
            raise OSError(self.number, os.strerror(self.number))
        done = self.true(descriptor, data[: min(self.room, self.most)])
        self.room -= done
        return done


@pytest.mark.parametrize("room", [0, 1, 7, 20, 40])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_schema_file_stays_whole(rig, monkeypatch, room, number):
    """When the schema file cannot grow its torn end is cut off, the row is counted, and later all is well."""
    rig.run.log({"a": 1})
    with monkeypatch.context() as patched:
        Writes(patched, room, number)
        rig.run.log({"another": 1})
    assert len(entries(rig)) == 1
    rig.run.log({"a": 2})
    rig.run.log({"another": 3})
    assert [row for _, row in rig.rows()] == [{"a": 1}, {"a": 2}, {"another": 3}]
    assert (rig.refused, rig.complaints()) == (1, {"schema": 1})


def test_short_writes_are_completed(rig, monkeypatch):
    """An entry that the system takes three bytes at a time is whole in the end."""
    Writes(monkeypatch, 1 << 20, most=3)
    rig.run.log({"a": 1})
    assert rig.rows() == [(0, {"a": 1})]


def test_row_during_a_declaration(rig, monkeypatch):
    """A row with new names that comes while another thread declares waits a moment, and is written by a later call."""
    monkeypatch.setattr(declarations, "PATIENCE", 0.001)
    rig.run.log({"known": 0})
    with rig.declarations._lock:
        thread = threading.Thread(target=rig.run.log, args=({"a": 1}, 7))
        thread.start()
        thread.join()
        rig.run.log({"known": 1})
    rig.run.log({"known": 2})
    assert rig.rows() == [(0, {"known": 0}), (1, {"known": 1}), (2, {"known": 2}), (7, {"a": 1})]
    assert rig.refused == 0


def test_row_inside_a_declaration(rig, monkeypatch):
    """A signal handler that logs new names inside a declaration does not wait for itself, and its row is kept."""
    monkeypatch.setattr(declarations, "PATIENCE", 3600)
    append = declarations._append

    def interrupted(descriptor, data):
        monkeypatch.setattr(declarations, "_append", append)
        rig.run.log({"inner": 1})
        append(descriptor, data)

    monkeypatch.setattr(declarations, "_append", interrupted)
    rig.run.log({"outer": 0})
    assert sorted(row for _, rows in rig.rows() for row in rows) == ["inner", "outer"]
    assert rig.refused == 0


def test_rows_that_wait_for_a_declaration_are_bounded(rig, monkeypatch):
    """Rows beyond the limit, and rows that still wait at the end of the run, are counted as lost."""
    monkeypatch.setattr(declarations, "PATIENCE", 0.001)
    monkeypatch.setattr(intake, "MAX_PENDING", 2)
    with rig.declarations._lock:
        for name in "abc":
            rig.run.log({name: 1})
        assert rig.refused == 1
        rig.intake.close(rig.run)
    assert (rig.rows(), rig.refused) == ([], 3)


def test_step_during_a_declaration(rig, monkeypatch):
    """A step with new phases that ends while another thread declares is counted as lost."""
    monkeypatch.setattr(declarations, "PATIENCE", 0.001)
    with rig.declarations._lock, rig.run.step():
        pass
    assert (rig.rows(), rig.refused) == ([], 1)


def test_closed_declarations(rig, open_files):
    """After the end nothing is declared any more, and the file's descriptor is given back."""
    before = open_files()
    rig.declarations.close()
    assert [target for _, target in before - open_files()] == [str(rig.schema)]
    with pytest.raises(TimeoutError):
        rig.declarations.layout(("late",), "d")
    assert entries(rig) == []


def test_closing_waits_for_nobody(rig, monkeypatch):
    """A declaration that hangs keeps its file, and the end of the run goes on."""
    monkeypatch.setattr(declarations, "PATIENCE", 0.001)
    with rig.declarations._lock:
        rig.declarations.close()
    rig.run.log({"a": 1})
    assert len(rig.rows()) == 1
