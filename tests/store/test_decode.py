from __future__ import annotations

import bisect
import json
import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.columns import RowSchema, encode_names, encode_schema
from stepscope.core.records import RECORD, heads
from stepscope.store import tail
from stepscope.store.decode import decode_tail
from stepscope.store.points import NO_NS
from tests.store.recorded import PAIR, Recorded, decoded_values, frames_of, values_of

ROWS = 1000


def value_of(sequence):
    """Return the bits of a value that tells its row; every tenth is a NaN with a payload."""
    return (
        0x7FF8 << 48 | sequence + 1 if sequence % 10 == 0 else struct.unpack("<q", struct.pack("<d", sequence / 7))[0]
    )


@pytest.fixture(scope="module")
def long_tail(tmp_path_factory):
    """The bytes of a tail of 1 000 rows of two values, some drained together and some alone."""
    recorded = Recorded(tmp_path_factory.mktemp("tail"))
    noise = random.Random(1)
    for sequence in range(ROWS):
        value = struct.unpack("<d", struct.pack("<q", value_of(sequence)))[0]
        recorded.run.log({"a": value, "b": float(sequence)})
        if noise.random() < 0.1:
            recorded.drain()
    recorded.drain()
    return recorded.tail_bytes()


def rows_found(data, times):
    """Return the sequences found, after comparing each value, step and time with what was written."""
    points = decode_tail(data).points
    if not len(points):
        return set()
    assert len(np.unique(points.seq * 2 + points.name)) == len(points)
    bits = points.value.view(np.int64)
    for code, name in enumerate(points.names):
        of_name = points.name == code
        sequences = points.seq[of_name].tolist()
        if name == "a":
            assert bits[of_name].tolist() == [value_of(sequence) for sequence in sequences]
        else:
            assert points.value[of_name].tolist() == sequences
        assert points.step[of_name].tolist() == sequences
        assert points.time[of_name].tolist() == times[sequences].tolist()
    a, b = (points.names.index(name) if name in points.names else -1 for name in "ab")
    assert set(points.seq[points.name == a].tolist()) == set(points.seq[points.name == b].tolist())
    return set(points.seq.tolist())


@pytest.fixture(scope="module")
def true_times(long_tail):
    points = decode_tail(long_tail).points
    times = np.zeros(ROWS, np.int64)
    times[points.seq] = points.time
    assert len(points) == 2 * ROWS
    return times


def records_in(data):
    """Return (end of the frame, sequences of its records) for each frame of records."""
    found = []
    for frame in frames_of(data):
        if frame.kind == tail.KIND_RECORDS:
            records = heads(data[frame.start : frame.end])
            found.append((frame.end, [sequence for _, _, _, sequence, _, _ in records]))
    return found


@pytest.mark.slow
def test_cuts(long_tail, true_times):
    """A tail of many rows, cut within any frame, gives all whole rows before the cut and no exception."""
    frames = records_in(long_tail)
    ends, counts = [end for end, _ in frames], np.cumsum([0, *(len(sequences) for _, sequences in frames)])
    assert rows_found(long_tail, true_times) == set(range(ROWS))
    whole = decode_tail(long_tail).points
    edges = {end + offset for end in (0, *ends[::5]) for offset in range(-9, 40)}  # ends of frames, and next heads
    for cut in sorted(edges & {*range(len(long_tail) + 1)} | {*range(0, len(long_tail) + 1, 101)}):
        found = decode_tail(long_tail[:cut]).points
        rows = counts[bisect.bisect_right(ends, cut)]
        assert len(found) == 2 * rows, cut
        kept = whole.seq < rows
        for column in ("seq", "step", "time"):
            assert np.array_equal(getattr(found, column), getattr(whole, column)[kept]), cut
        assert found.value.tobytes() == whole.value[kept].tobytes(), cut


def test_cuts_at_every_byte(tmp_path):
    """A small tail of every kind of frame, cut at every single byte, gives its whole rows."""
    recorded = Recorded(tmp_path)
    for number in range(8):
        recorded.run.log({"a": float(number)})
        recorded.run.log({f"n{number % 3}": 1.0, "text": "x"})
        recorded.drain()
    recorded.drain_.own.add({"stepscope/x": 1.0}, 5)
    recorded.drain_.write_own(PAIR)
    data = recorded.tail_bytes()
    whole = decoded_values(data)
    for cut in range(len(data) + 1):
        found = decode_tail(data[:cut])
        assert found.problems("x") == []
        assert values_of(found.points).items() <= whole.items()


@pytest.mark.slow
def test_flips(long_tail):
    """Of 3 000 changed bytes none crashes the reader, none gives a wrong value, none costs more than its frame."""
    noise = random.Random(2)
    piece = long_tail[: next(end for end, _ in records_in(long_tail) if end > 3500)]
    frames = records_in(piece)
    whole = decoded_values(piece)
    silent = 0
    for _ in range(3000):
        at = noise.randrange(len(piece))
        spoiled = bytearray(piece)
        spoiled[at] ^= noise.randrange(1, 256)
        decoded = decode_tail(bytes(spoiled))
        found = values_of(decoded.points)
        assert found.items() <= whole.items(), at
        lost = {sequence for _, _, sequence, _ in whole.keys() - found.keys()}
        assert not lost or any(lost <= set(sequences) for _, sequences in frames), at
        silent += bool(lost) and not decoded.problems("x")
    assert silent < 30  # only in the length of the very last frame a flip looks like a write under way


def test_duplicates_are_taken_once(long_tail):
    """Rows that stand in a tail twice, or were taken from another, are taken once."""
    once = decode_tail(long_tail)
    assert len(decode_tail(long_tail + long_tail).points) == len(once.points)
    assert once.last_seq == {0: ROWS - 1}
    assert len(decode_tail(long_tail, {0: ROWS - 11}).points) == 20
    assert len(decode_tail(long_tail, once.last_seq).points) == 0


def stream_frame(number=0, **facts):
    return tail.encode(tail.KIND_STREAM, number, json.dumps({"rank": 0, "attempt": 0, **facts}).encode())


def record(schema, sequence, *values, kinds="d", checked=False):
    payload = struct.pack(f"<{kinds}", *values) + (bytes(8) if checked else b"")
    return RECORD.pack(32 + len(payload), schema, sequence, 0, 0) + payload


def test_unknown_frames_are_passed_over_and_told(long_tail):
    """A frame of a kind that a later version adds is passed over, and said so; the rest is read."""
    found = decode_tail(tail.encode(99, 0, b"future") + long_tail + tail.encode(100, 7, b""))
    assert len(found.points) == 2 * ROWS
    assert found.problems("t.log") == ["t.log: 2 blocks of an unknown kind were passed over"]


def test_unknown_columns_are_passed_over_and_told():
    """Rows whose columns nothing declares are passed over, and said so; the rest is read."""
    schema = tail.encode(tail.KIND_SCHEMAS, 0, encode_schema(RowSchema(16, ("a",), "d")))
    rows = record(16, 0, 1.0) + record(17, 1, 2.0) + record(1, 2, 5, 3.0, kinds="Qd") + record(16, 3, 4.0)
    found = decode_tail(stream_frame() + schema + tail.encode(tail.KIND_RECORDS, 0, rows))
    assert found.points.value.tolist() == [1.0, 4.0]
    assert found.problems("t.log") == ["t.log: 2 rows of unknown columns were passed over"]


def test_rows_that_do_not_fit_their_columns():
    """A row of another length than its columns say is not guessed at."""
    schema = tail.encode(tail.KIND_SCHEMAS, 0, encode_schema(RowSchema(16, ("a", "b"), "dd")))
    found = decode_tail(stream_frame() + schema + tail.encode(tail.KIND_RECORDS, 0, record(16, 0, 1.0)))
    assert (len(found.points), found.unknown_records) == (0, 1)


def test_rows_of_nobody():
    """Rows of a stream that nothing describes are passed over, and said so."""
    found = decode_tail(tail.encode(tail.KIND_RECORDS, 5, record(16, 0, 1.0)))
    assert (len(found.points), found.unknown_frames) == (0, 1)


def test_nonsense_inside_a_frame():
    """A record that claims more than its frame holds, or less than a record, ends the frame."""
    schema = tail.encode(tail.KIND_SCHEMAS, 0, encode_schema(RowSchema(16, ("a",), "d")))
    for length in (0, 8, 4096):
        rows = record(16, 0, 1.0) + RECORD.pack(length, 16, 1, 0, 0)
        found = decode_tail(stream_frame() + schema + tail.encode(tail.KIND_RECORDS, 0, rows))
        assert found.points.value.tolist() == [1.0]


@pytest.mark.parametrize("checked", [False, True])
def test_kinds_of_columns(checked):
    """Floats, exact durations and pairs are decoded, with and without a checksum behind each record."""
    schemas = encode_schema(RowSchema(16, ("t", "x"), "qd")) + encode_names(0, ["p", "q"])
    rows = record(16, 0, 1_500_000_000, 2.5, kinds="qd", checked=checked)
    rows += record(1, 1, 1, 7.0, 0, 8.0, kinds="QdQd", checked=checked)
    data = stream_frame(checked=checked) + tail.encode(tail.KIND_SCHEMAS, 0, schemas)
    points = decode_tail(data + tail.encode(tail.KIND_RECORDS, 0, rows)).points
    found = [
        (points.names[code], value, ns) for code, value, ns in zip(points.name, points.value, points.ns, strict=True)
    ]
    assert found == [("t", 1.5, 1_500_000_000), ("x", 2.5, NO_NS), ("q", 7.0, NO_NS), ("p", 8.0, NO_NS)]


def test_time_follows_the_latest_pair_of_clocks():
    """Wall time comes from the latest pair of clocks at or before the row's moment."""
    schema = tail.encode(tail.KIND_SCHEMAS, 0, encode_schema(RowSchema(16, ("a",), "d")))
    rows = b"".join(
        struct.pack("<IIQqqd", 40, 16, sequence, moment, 0, 0.0) for sequence, moment in enumerate((10_000, 60_000))
    )
    clocks = [
        tail.encode(tail.KIND_CLOCK, 0, tail.CLOCK.pack(wall, at)) for wall, at in ((1_000_000, 0), (9_000_000, 50_000))
    ]
    data = stream_frame() + b"".join(clocks) + schema + tail.encode(tail.KIND_RECORDS, 0, rows)
    assert decode_tail(data).points.time.tolist() == [1010, 9010]


def test_times_of_a_followed_run_come_back_to_the_microsecond():
    """Rows of another tool are dated by the pair of their stream alone, also before the boot and the first pair."""
    schema = tail.encode(tail.KIND_SCHEMAS, 0, encode_schema(RowSchema(16, ("a",), "d")))
    wall, monotonic = 1_700_000_000_000_001_000, 5_000_000_123
    times = [0, 1, 1_600_000_000_123_457, 1_700_000_000_999_999, 1_900_000_000_000_000]
    moments = [time * 1000 - wall + monotonic for time in times]
    rows = b"".join(struct.pack("<IIQqqd", 40, 16, at, moment, 0, 0.0) for at, moment in enumerate(moments))
    clock = tail.encode(tail.KIND_CLOCK, 0, tail.CLOCK.pack(wall + 777_777, monotonic))
    stream = stream_frame(followed=True, wall_ns=wall, monotonic_ns=monotonic)
    data = stream + clock + schema + tail.encode(tail.KIND_RECORDS, 0, rows)
    assert decode_tail(data).points.time.tolist() == times


ROW = st.dictionaries(st.sampled_from(["a", "b", "c", "µ/ü"]), st.integers(0, 2**64 - 1), min_size=1)


@given(st.lists(st.tuples(ROW, st.integers(-(2**63) + 1, 2**63 - 1) | st.none(), st.booleans()), max_size=30))
def test_round_trip(tmp_path_factory, rows):
    """Any rows come from the recorder through ring, drain and tail to the points bit by bit, in order, each once."""
    recorded = Recorded(tmp_path_factory.mktemp("run"), ring_bytes=1 << 18)
    expected, count = {}, 0
    for sequence, (row, step, drains) in enumerate(rows):
        recorded.run.log(
            {name: struct.unpack("<d", struct.pack("<Q", bits))[0] for name, bits in row.items()}, step=step
        )
        at, count = (count, count + 1) if step is None else (step, count)
        for name, bits in row.items():
            expected[0, 0, sequence, name] = (at, struct.unpack("<q", struct.pack("<Q", bits))[0], NO_NS)
        if drains:
            recorded.drain()
    recorded.drain()
    assert decoded_values(recorded.tail_bytes()) == expected
    recorded.close()


def test_rows_that_come_twice_in_one_frame_are_taken_once():
    """A row whose sequence is not above that of every row before it is left out, whatever kinds lie between."""
    rows = b"".join(record(16 + n % 2, n, float(n)) for n in range(20))
    again = b"".join(record(16, n, float(n)) for n in range(0, 20, 2)) + record(18, 20, 20.0)
    frames = [
        tail.encode(tail.KIND_STREAM, 0, json.dumps({"rank": 0, "attempt": 0}).encode()),
        *(tail.encode(tail.KIND_SCHEMAS, 0, encode_schema(RowSchema(n, ("x",), "d"))) for n in (16, 17, 18)),
        tail.encode(tail.KIND_RECORDS, 0, rows + again),
    ]
    assert sorted(decode_tail(b"".join(frames)).points.seq.tolist()) == list(range(21))
