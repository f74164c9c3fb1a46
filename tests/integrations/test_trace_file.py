from __future__ import annotations

import gzip
import random
import stat

import pytest

from stepscope.integrations.profiler.trace_file import expected_bytes, keep


def writes(text):
    def write(path):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)

    return write


@pytest.fixture
def path(tmp_path):
    return tmp_path / "profiles" / "trace.json"


def test_small_trace_is_kept_as_it_is(path):
    """A trace within its cap is a plain file, readable by this user only."""
    kept = keep(writes("{}"), path, 2, max_bytes=100)
    assert (kept.path, kept.size, kept.note) == (path, 2, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.promise("S3-029")
def test_large_trace_is_compressed(path):
    """A trace beyond its cap is kept compressed, with a note, and nothing else is left."""
    kept = keep(writes("a" * 5000), path, 500, max_bytes=1000)
    assert kept.path.name == "trace.json.gz"
    assert "compressed" in kept.note
    assert gzip.decompress(kept.path.read_bytes()) == b"a" * 5000
    assert [item.name for item in path.parent.iterdir()] == ["trace.json.gz"]


@pytest.mark.promise("S3-029")
def test_trace_that_is_too_large_even_compressed_is_left_out(path):
    """A trace that exceeds its cap even compressed leaves nothing but a note that says what to do."""
    kept = keep(writes("".join(random.choices("0123456789abcdef", k=9000))), path, 500, max_bytes=1000)
    assert kept.path is None
    assert "left out" in kept.note
    assert "max_bytes" in kept.note
    assert list(path.parent.iterdir()) == []


@pytest.mark.promise("S3-029")
@pytest.mark.parametrize(("expected", "free"), [(10_000, 10**9), (500, 600)], ids=["cap", "disk"])
def test_trace_that_cannot_fit_is_not_even_written(path, expected, free):
    """A trace that cannot fit its cap, or would fill half of the free disk, is not written at all."""
    kept = keep(pytest.fail, path, expected, max_bytes=1000, free=lambda folder: free)
    assert kept.path is None
    assert "left out" in kept.note


def test_writing_that_fails_leaves_nothing(path):
    """A trace whose writing fails leaves no half of it."""

    def write(name):
        writes("half")(name)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        keep(write, path, 10)
    assert list(path.parent.iterdir()) == []


def test_trace_replaces_the_one_before(path):
    """A trace of the same name replaces the one before, plain or compressed."""
    keep(writes("a" * 5000), path, 500, max_bytes=1000)
    keep(writes("{}"), path, 2)
    assert [item.name for item in path.parent.iterdir()] == ["trace.json"]


def test_shapes_and_stacks_make_it_larger():
    """More is expected of a trace with shapes, and yet more with stacks."""
    assert expected_bytes(10) < expected_bytes(10, shapes=True) < expected_bytes(10, shapes=True, stacks=True)
