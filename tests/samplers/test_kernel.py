from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.samplers.kernel import Growth, KernelFile, number, pairs, read_small, value_of
from tests.samplers.machines import SECOND


def test_reads_what_is_there_now(tmp_path):
    """A kept file shows what was written into it since."""
    path = tmp_path / "stat"
    path.write_text("1")
    file = KernelFile(str(path))
    assert file.read() == b"1"
    path.write_text("22")
    assert file.read() == b"22"


def test_opens_anew(tmp_path):
    """A kept file that gives nothing any more is opened again by its name."""
    path = tmp_path / "stat"
    path.write_text("old")
    file = KernelFile(str(path))
    file.read()
    path.write_text("")
    (tmp_path / "new").write_text("new")
    (tmp_path / "new").rename(path)
    assert file.read() == b"new"


def test_never_a_successor(tmp_path):
    """What was kept open is read on although another file has taken its name."""
    path = tmp_path / "stat"
    path.write_text("old")
    file = KernelFile(str(path))
    file.read_same()
    (tmp_path / "new").write_text("new")
    (tmp_path / "new").rename(path)
    assert file.read_same() == b"old"


def test_missing_file(tmp_path):
    """A file that is not there is an OSError, and no number."""
    file = KernelFile(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        file.read()
    assert file.find_number() is None


def test_reads_more_than_a_page(tmp_path):
    """A file of many pages comes whole, although the kernel hands out less at a time."""
    path = tmp_path / "long"
    path.write_bytes(b"0123456789" * 5000)
    assert KernelFile(str(path)).read() == read_small(str(path)) == path.read_bytes()


def test_dies_quietly_half_made():
    """One that Ctrl-C kept from being made raises nothing when it is collected."""
    KernelFile.__new__(KernelFile, "/proc/stat").__del__()


@pytest.mark.parametrize("keep", [True, False])
def test_leaves_no_file_open(tmp_path, open_files, keep):
    """A file is closed with its object, and at once if it is not to be kept."""
    (tmp_path / "stat").write_text("1")
    before = open_files()
    file = KernelFile(str(tmp_path / "stat"), keep=keep)
    file.read()
    assert len(open_files() - before) == keep
    del file
    assert open_files() <= before


@given(st.binary(max_size=300), st.binary(min_size=1, max_size=5))
def test_parsers_meet_anything(data, key):
    """Whatever stands in a file, parsing it gives numbers of 64 bits or a ValueError."""
    for parse in (number, pairs, lambda text: value_of(text, key)):
        try:
            found = parse(data)
        except ValueError:
            continue
        values = found.values() if isinstance(found, dict) else [found or 0]
        assert all(abs(value) < 1 << 64 for value in values)


def test_pairs_of_both_kinds():
    """Keys with and without a colon are read; lines of another form are left out."""
    assert pairs(b"rchar: 12\nusage_usec 7\nsome avg10=0.00\nmax\n") == {b"rchar": 12, b"usage_usec": 7}


def test_value_of_one_key():
    """A key is found at the start of a line only, in the first line too."""
    text = b"MemTotal: 5 kB\nHugeMemFree: 1 kB\nMemFree: 2 kB"
    assert (value_of(text, b"MemTotal:"), value_of(text, b"MemFree:"), value_of(text, b"Swap:")) == (5, 2, None)


def test_growth_per_second():
    """Counters become rates per second; a first look, a standing clock and a counter set back give none."""
    growth = Growth()
    assert growth.of("a", (10, 0), SECOND) is None
    assert growth.of("a", (30, 5), 3 * SECOND) == (10.0, 2.5)
    assert growth.of("a", (40, 5), 3 * SECOND) is None
    assert growth.of("a", (1, 9), 4 * SECOND) is None
    assert growth.of("a", (2, 9), 5 * SECOND) == (1.0, 0.0)


def test_sums_make_no_jump():
    """An instance that comes adds nothing at first, one that goes takes nothing away, one that returns starts anew."""
    growth = Growth()
    assert growth.sums({"a": (0,)}, 0) == []
    assert growth.sums({"a": (5,), "b": (1000,)}, SECOND) == [5.0]
    assert growth.sums({"b": (1003,)}, 2 * SECOND) == [3.0]
    assert growth.sums({"a": (9,), "b": (1003,)}, 3 * SECOND) == [0.0]
