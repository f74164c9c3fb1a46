from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.core import ring
from stepscope.core.defaults import VALUES
from stepscope.core.records import RECORD, heads
from stepscope.recorder import mapping
from tests.recorder.rig import Rig, identity_of

SEGMENT = 256
SMALL = ring.HEADER_BYTES + ring.SEGMENTS * SEGMENT


@pytest.fixture
def small(tmp_path):
    return Rig(tmp_path, SMALL)


def fill(rig, rows, width=1):
    """Log rows whose first value is their sequence."""
    for sequence in range(rows):
        rig.run.log({f"v{at}": float(sequence + at) for at in range(width)})


def sequences(pieces):
    return [sequence for piece in pieces for _, _, _, sequence, _, _ in heads(piece.data)]


def test_header_words(small):
    """The header says what the ring is and how far its writer has come, in words of 8 bytes."""
    fill(small, 3)
    words = small.reader.words()
    assert words[ring.WORD_MAGIC].to_bytes(8, "little") == b"STEPRING"
    assert words[ring.WORD_VERSION : ring.WORD_CHECKED + 1] == (ring.VERSION, SEGMENT, 0)
    assert words[ring.WORD_HEAD : ring.WORD_STATE + 1] == (3 * 40, 0, ring.STATE_RUNNING)


def test_identity_stands_in_the_header(small, tmp_path):
    """A reader learns from the ring alone whose rows these are."""
    assert small.reader.identity == identity_of(tmp_path)


def test_identity_of_a_later_version_is_understood(tmp_path):
    """Fields of the identity that this version does not know are passed over."""
    text = json.dumps({**identity_of(tmp_path)._asdict(), "from_the_future": 1}).encode()
    assert ring.RingIdentity.decode(struct.pack("<II", len(text), zlib.crc32(text)) + text) == identity_of(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\1", bytes(8) + b"x", struct.pack("<II", 5, 0) + b"{}"])
def test_damaged_identity_is_an_error(data):
    """An identity that is cut or changed is a ValueError, whatever its bytes."""
    with pytest.raises(ValueError, match=r"damaged|Expecting"):
        ring.RingIdentity.decode(data)


def test_consumers_words_do_not_touch_the_writers(small):
    """What the consumer stores stands in words of its own."""
    before = small.reader.words()
    small.reader.set_word(ring.WORD_STATUS, 5)
    small.reader.set_progress(7, 8, 9)
    after = small.reader.words()
    assert after[: ring.WORD_STATUS] == before[: ring.WORD_STATUS]
    assert after[ring.WORD_STATUS : ring.WORD_LOST + 1] == (5, 7, 8, 9)


def test_records_never_straddle_segments(small):
    """A record that does not fit the rest of a segment starts the next one, and padding fills the gap."""
    fill(small, 40, width=5)  # 72 bytes each: three to a segment of 256
    pieces, cursor = small.reader.read(0)
    assert sequences(pieces) == list(range(40))
    assert all(piece.position % SEGMENT + len(piece.data) <= SEGMENT for piece in pieces)
    assert {len(piece.data) for piece in pieces[:-1]} == {3 * 72}
    assert cursor == small.reader.words()[ring.WORD_HEAD]


def test_nothing_new_is_nothing(small):
    """A reader that has everything gets nothing and stays where it is."""
    fill(small, 3)
    _, cursor = small.reader.read(0)
    assert small.reader.read(cursor) == ([], cursor)


def test_reading_in_small_steps(small):
    """A limit ends the reading at the end of a segment; the next call goes on there."""
    fill(small, 100)
    found, cursor = [], 0
    while True:
        pieces, after = small.reader.read(cursor, limit=1)
        if after == cursor:
            break
        assert len(pieces) == 1
        found += sequences(pieces)
        cursor = after
    assert found == list(range(100))


def test_lapping_shows_as_a_gap(small):
    """After the writer lapped the reader, what is left is whole segments and the newest rows, in order."""
    rows = 64 * 6 * 3 + 17  # six rows to a segment, three times around
    fill(small, rows)
    found = sequences(small.reader.read(0)[0])
    assert found == list(range(found[0], rows))
    assert len(found) >= 63 * 6
    assert found[0] % 6 == 0


def test_lapped_while_reading(small, monkeypatch):
    """What the writer overwrites while it is being read is thrown away, not returned."""
    fill(small, 64 * 6)
    true_words, calls = small.reader.words, []

    def words():
        calls.append(1)
        if len(calls) == 2:  # after the copy, before the second look at what is the oldest
            fill(small, 64 * 6 + 10)
        return true_words()

    monkeypatch.setattr(small.reader, "words", words)
    pieces, cursor = small.reader.read(0)
    assert sequences(pieces) == []
    monkeypatch.undo()
    found = sequences(small.reader.read(cursor)[0])
    assert found == list(range(found[0], 64 * 12 + 10))


@settings(max_examples=60)
@given(
    widths=st.lists(st.integers(1, 12), max_size=400),
    limits=st.lists(st.integers(1, 3000), min_size=1, max_size=20),
    machine=st.sampled_from(["x86_64", "aarch64"]),
)
def test_any_rows_in_any_chunks(tmp_path_factory, widths, limits, machine):
    """Whatever the sizes of rows and of reads, a reader gets the suffix that was not lapped, each row once."""
    rig = Rig(tmp_path_factory.mktemp("ring"), SMALL, machine)
    for sequence, width in enumerate(widths):
        rig.run.log({f"v{at}": float(sequence) for at in range(width)})
    found, cursor, turn = [], 0, 0
    while True:
        pieces, after = rig.reader.read(cursor, limits[turn % len(limits)])
        found += sequences(pieces)
        if after == cursor:
            break
        cursor, turn = after, turn + 1
    assert found == list(range(len(widths)))[len(widths) - len(found) :]
    assert sum(32 + 8 * width for width in widths[: len(widths) - len(found)]) == 0 or len(found) * 144 > 40 * SEGMENT
    assert [set(row.values()) for _, row in rig.rows()] == [{float(sequence)} for sequence in found]
    rig.close()


def test_checked_records_carry_their_crc(tmp_path):
    """Off x86 each record ends with the crc32 of what is before it, and its rows read the same."""
    rig = Rig(tmp_path, SMALL, machine="aarch64")
    fill(rig, 200, width=2)
    assert rig.reader.checked
    assert rig.rows()[-1] == (199, {"v0": 199.0, "v1": 200.0})
    data = rig.reader.read(0)[0][0].data
    assert zlib.crc32(data[:48]) == struct.unpack_from("<Q", data, 48)[0]


def spoil(rig, position, data=b"\xff"):
    return os.pwrite(rig.descriptor, data, ring.HEADER_BYTES + position)


def test_record_that_is_not_visible_yet(tmp_path):
    """A published record whose bytes have not arrived is left for the next call, and so is what follows it."""
    rig = Rig(tmp_path, SMALL, machine="aarch64")
    fill(rig, 3)  # 48 bytes each
    true = os.pread(rig.descriptor, 1, ring.HEADER_BYTES + 48 + 33)
    spoil(rig, 48 + 33, bytes([true[0] ^ 1]))
    pieces, cursor = rig.reader.read(0)
    assert (sequences(pieces), cursor) == ([0], 48)
    spoil(rig, 48 + 33, true)
    pieces, cursor = rig.reader.read(cursor)
    assert (sequences(pieces), cursor) == ([1, 2], 144)


def test_damaged_record_costs_its_segment_only(tmp_path):
    """A record that stays unreadable costs the rest of its segment once the writer has left it."""
    rig = Rig(tmp_path, SMALL, machine="aarch64")
    fill(rig, 20)  # five to a segment
    spoil(rig, SEGMENT + 48 + 40)
    assert sequences(rig.reader.read(0)[0]) == [0, 1, 2, 3, 4, 5, *range(10, 20)]


@pytest.mark.parametrize("length", [8, 31, 36, 4096])
def test_impossible_lengths_are_no_records(small, length):
    """A length that no record can have ends the reading of its segment without a crash."""
    fill(small, 12)
    spoil(small, 40, struct.pack("<I", length))
    assert sequences(small.reader.read(0)[0]) == [0, *range(6, 12)]


@pytest.mark.parametrize("size", [0, 100, 176, 300, ring.HEADER_BYTES, SMALL - 1])
def test_truncated_ring_is_an_error(small, size):
    """A ring that was cut, wherever, is a ValueError for a new reader and for one that has it open."""
    fill(small, 300)
    os.ftruncate(small.descriptor, size)
    with pytest.raises(ValueError, match=r"truncated|damaged"):
        ring.RingReader(small.descriptor)
    if size < SMALL - 100:
        with pytest.raises(ValueError, match="truncated"):
            small.reader.read(0)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (ring.WORD_MAGIC, 1),
        (ring.WORD_VERSION, 3),
        (ring.WORD_SEGMENT_BYTES, 8),
        (ring.WORD_SEGMENT_BYTES, 1 << 40),
        (ring.WORD_SEGMENT_BYTES, SEGMENT + 1),
    ],
)
def test_foreign_header_is_an_error(small, word, value):
    """A file that is no ring, or one of another version, is refused."""
    small.reader.set_word(word, value)
    with pytest.raises(ValueError, match="ring"):
        ring.RingReader(small.descriptor)


def test_impossible_head_is_an_error(small):
    """A head further ahead than the ring is long is damage, not work for hours."""
    small.reader.set_word(ring.WORD_HEAD, 1 << 60)
    with pytest.raises(ValueError, match="damaged"):
        small.reader.read(0)


def test_records_stop_at_nonsense():
    """Records are listed up to the first one that cannot be."""
    whole = RECORD.pack(40, 16, 7, 0, 0) + bytes(8)
    assert [head[2:4] for head in heads(whole + RECORD.pack(400, 16, 8, 0, 0))] == [(16, 7)]
    assert [head[2:4] for head in heads(whole + bytes(40))] == [(16, 7)]


def test_segments_are_words():
    """A segment is a multiple of 8 bytes in a ring of any size."""
    assert all(ring.segment_bytes(size) % 8 == 0 for size in range(20_000, 21_000))
    assert ring.segment_bytes(VALUES["recorder.ring_bytes"]) == 65472


WRITER = """
import sys
from pathlib import Path
from tests.recorder.rig import Rig
rig = Rig(Path(sys.argv[1]), 20480)
print(rig.path, flush=True)
sys.stdin.read(1)
for number in range(60_000):
    rig.run.log({"a": number})
"""


def test_words_move_one_way(tmp_path):
    """Another process that polls the header of a busy ring sees every word whole and growing."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{root}/src:{root}"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        descriptor = os.open(writer.stdout.readline().strip(), os.O_RDONLY)
        reader = ring.RingReader(descriptor)
        writer.stdin.write("x")
        writer.stdin.close()
        seen = [reader.words()]
        while writer.poll() is None:
            seen.append(reader.words())
    os.close(descriptor)
    for word in (ring.WORD_HEAD, ring.WORD_OLDEST, ring.WORD_CALLS, ring.WORD_CALL_NS):
        column = [words[word] for words in seen]
        assert column == sorted(column), word
    assert {words[ring.WORD_STATE] for words in seen} == {ring.STATE_RUNNING}
    assert all(words[ring.WORD_HEAD] - words[ring.WORD_OLDEST] <= reader.capacity for words in seen)


def test_mapping_reserves_its_space(tmp_path):
    """The file of a ring has all its bytes before it is mapped, private to the user, under its final name."""
    rig = Rig(tmp_path, SMALL)
    facts = rig.path.stat()
    assert facts.st_blocks * 512 >= SMALL
    assert facts.st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_scratch_is_nobodys():
    """A recorder that is off has memory to write to and no file."""
    scratch = mapping.Mapping.scratch()
    scratch.close()
    assert scratch.path is None
    assert len(scratch.buffer) >= scratch.segment_bytes * ring.SEGMENTS
