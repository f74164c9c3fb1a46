"""The environment that makes torch record its collectives: set before it starts, and only where the user did not."""

from __future__ import annotations

from types import ModuleType

import pytest

from stepscope.session import flight_recorder
from stepscope.session.flight_recorder import FILE, OLD_FILE, OLD_SIZE, SIZE, keep_dumps, record_collectives


@pytest.mark.parametrize(("version", "name"), [((2, 13), SIZE), ((2, 8), SIZE), ((2, 7), OLD_SIZE), ((0,), OLD_SIZE)])
def test_the_size_has_the_name_that_this_torch_knows(monkeypatch, version, name):
    """Later versions print a warning about the old name."""
    monkeypatch.setattr(flight_recorder, "_version", lambda: version)
    environ = {}
    record_collectives(environ)
    assert environ == {name: "2000"}


@pytest.mark.parametrize("given", [{SIZE: "0"}, {OLD_SIZE: "50"}])
def test_what_the_user_has_set_stays(given):
    """Also under the old name, and also if it means: do not record."""
    environ = dict(given)
    record_collectives(environ)
    assert environ == given


def test_dumps_of_torch_land_in_the_run(monkeypatch, tmp_path):
    """A file per rank with the attempt in its name; what a program inherited from another run is replaced."""
    monkeypatch.setattr(flight_recorder, "_version", lambda: (2, 13))
    environ = {}
    for run in ("first", "second"):
        (tmp_path / run).mkdir()
        keep_dumps(environ, tmp_path / run, 3)
        assert environ == {FILE: f"{tmp_path}/{run}/flight/3-comm_lib_trace_rank_"}
        assert (tmp_path / run / "flight").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", [FILE, OLD_FILE])
def test_the_place_that_the_user_chose_stays(tmp_path, name):
    """No folder is made either."""
    environ = {name: "/tmp/mine_"}
    keep_dumps(environ, tmp_path, 0)
    assert environ == {name: "/tmp/mine_"}
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_torch_decides(tmp_path):
    """A run that cannot be written keeps torch's own place."""
    environ = {}
    keep_dumps(environ, tmp_path / "gone", 0)
    assert environ == {}


def test_the_version_is_read_without_importing_torch(monkeypatch, tmp_path):
    """From its file; an installation without one counts as old."""
    monkeypatch.delitem(flight_recorder.sys.modules, "torch", raising=False)
    (tmp_path / "version.py").write_text("__version__ = '2.9.1+cu128'\n")

    class Spec:
        origin = str(tmp_path / "__init__.py")

    monkeypatch.setattr(flight_recorder, "find_spec", lambda _: Spec)
    assert flight_recorder._version() == (2, 9)
    (tmp_path / "version.py").unlink()
    assert flight_recorder._version() == (0,)
    monkeypatch.setattr(flight_recorder, "find_spec", lambda _: None)
    assert flight_recorder._version() == (0,)


def test_a_stand_in_for_torch_has_no_version(monkeypatch):
    """A module that a test made, without a version and without an origin, is no reason to lose the run."""
    monkeypatch.setitem(flight_recorder.sys.modules, "torch", ModuleType("torch"))
    assert flight_recorder._version() == (0,)
