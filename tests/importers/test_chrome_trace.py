"""The reader of Chrome traces: every spelling of the field is read, everything else ends in a clear error."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepscope.core.errors import StepscopeError
from stepscope.core.trace import ANNOTATION, KERNEL, MEMCPY, MEMSET, OPERATOR, OTHER, RUNTIME, SYNC, Trace
from stepscope.importers.traces import events as trace_events
from stepscope.importers.traces.chrome_trace import read_trace, read_traces
from stepscope.importers.traces.text import TraceLimits

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FOLDERS = ("hta-traces", "kineto-resnet50", "param-dlrm-8rank", "tracelens-h100")
FILES = sorted(path for name in FOLDERS for path in (DATA / name).rglob("*.gz"))


def event(name="k", cat="kernel", ts=1000, dur=5, **more):
    """Return one event of a device or a host."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": {}, **more}


def read(tmp_path, content, name="trace.json", **options) -> Trace:
    """Write a trace and read it."""
    path = tmp_path / name
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return read_trace(path, **options)


@pytest.mark.skipif(not FILES, reason="the traces of ../shared/data are not here")
@pytest.mark.parametrize("path", [path for path in FILES if path.stat().st_size < 500_000], ids=lambda path: path.name)
def test_real_traces_are_read(path):
    """Every real trace is read, its events in order of time and none lost."""
    for trace in read_traces(path):
        assert len(trace) or len(trace.memory)
        assert (np.diff(trace.start) >= 0).all()
        assert (trace.end >= trace.start).all()
        assert trace.kind.max(initial=0) <= MEMSET


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_object_and_array_form_plain_and_compressed(tmp_path, name, wrapped):
    """Both forms of a trace say the same, compressed or not."""
    events = [event(ts=20, dur=3), event("mm", "cpu_op", ts=10, dur=9, pid=1, tid=1)]
    trace = read(tmp_path, {"traceEvents": events} if wrapped else events, name)
    assert trace.start.tolist() == [0, 10_000]
    assert trace.end.tolist() == [9000, 13_000]
    assert trace.kind.tolist() == [OPERATOR, KERNEL]
    assert trace.origin == 10_000


@pytest.mark.parametrize(
    ("ts", "dur", "start", "length"),
    [
        (1699529623106750, 12, 1699529623106750_000, 12_000),
        (4458676522690.655, 156.777, 4458676522690_655, 156_777),
        ("1699529623106750.123", "0.456", 1699529623106750_123, 456),
        (1699529623106750123, 456, 1699529623106750_123, 456),
        (-5, 2, -5000, 2000),
    ],
    ids=["whole", "fraction", "text", "nanoseconds", "before zero"],
)
def test_times_are_exact(tmp_path, ts, dur, start, length):
    """Times keep every nanosecond, whatever they are written as."""
    trace = read(tmp_path, [event(ts=ts, dur=dur)])
    assert trace.origin == start
    assert trace.end.tolist() == [length]


def test_long_fractions_are_exact(tmp_path):
    """Microseconds since 1970 with decimals, which a binary fraction does not hold, keep every nanosecond."""
    text = b",".join(
        b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1699529623106750.%03d,"dur":1.001}' % number
        for number in range(50)
    )
    trace = read(tmp_path, b'{"traceEvents":[' + text + b"]}")
    assert trace.start.tolist() == list(range(50))
    assert (trace.end - trace.start == 1001).all()


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("Kernel", KERNEL),
        ("kernel", KERNEL),
        ("gpu_memcpy", MEMCPY),
        ("Memcpy", MEMCPY),
        ("gpu_memset", MEMSET),
        ("Operator", OPERATOR),
        ("cuda_driver", RUNTIME),
        ("mtia_runtime", RUNTIME),
        ("mtia_ccp_events", KERNEL),
        ("privateuse1_runtime", RUNTIME),
        ("hpu_op", KERNEL),
        ("cuda_sync", SYNC),
        ("user_annotation", ANNOTATION),
        ("never heard of", OTHER),
    ],
)
def test_categories_of_all_versions_and_vendors(tmp_path, category, kind):
    """A category is known in the spelling of every version and vendor."""
    assert read(tmp_path, [event(cat=category)]).kind.tolist() == [kind]


@pytest.mark.parametrize("category", ["mtia_ccp_events", "mtia_ccp", "hpu_op"])
def test_copies_among_the_kernels_of_a_device_are_told_by_their_name(tmp_path, category):
    """MTIA and Gaudi put all that the device does under one category; `dma…` there is a copy, a matmul is not."""
    names = ["dma_in: weights", "DMA h2d", "memset_zero", "fc_forward", "softmax_dma_free"]
    trace = read(tmp_path, [event(cat=category, name=name, ts=10 * at) for at, name in enumerate(names)])
    assert trace.kind.tolist() == [MEMCPY, MEMCPY, MEMSET, KERNEL, KERNEL]
    assert read(tmp_path, [event(cat="kernel", name="dma_like_kernel")]).kind.tolist() == [KERNEL]


def test_events_without_a_category_are_told_by_their_lane(tmp_path):
    """Where a trace has no categories (NPU, JAX), what it calls processes and threads tells device from host."""
    named = [
        ("process_name", 1, 0, "Ascend Hardware"),
        ("thread_name", 1, 2, "Stream 2"),
        ("process_name", 3, 0, "CANN"),
        ("thread_name", 3, 4, "Thread 4"),
        ("process_name", 5, 0, "Overlap Analysis"),
        ("process_name", 6, 0, "/device:GPU:0"),
        ("thread_name", 6, 1, "Stream #14(Compute)"),
    ]
    events = [
        {"ph": "X", "name": "MatMul", "pid": pid, "tid": tid, "ts": 1, "dur": 2}
        for pid, tid in ((1, 2), (3, 4), (5, 1), (6, 1))
    ]
    events.append({"ph": "X", "name": "MEMCPY_ASYNC", "pid": 1, "tid": 2, "ts": 9, "dur": 2})
    events += [
        {"ph": "M", "name": key, "pid": pid, "tid": tid, "args": {"name": text}} for key, pid, tid, text in named
    ]
    trace = read(tmp_path, events)
    kinds = {
        (trace.lanes[lane].pid, trace.named(name)): kind
        for lane, name, kind in zip(trace.lane, trace.name, trace.kind, strict=True)
    }
    assert kinds == {
        (1, "MatMul"): KERNEL,
        (1, "MEMCPY_ASYNC"): MEMCPY,
        (3, "MatMul"): OTHER,
        (5, "MatMul"): OTHER,
        (6, "MatMul"): KERNEL,
    }


def test_begin_and_end_are_joined(tmp_path):
    """Events that are written as a beginning and an end become whole, nested ones too."""
    marks = [("B", "outer", 1), ("B", "inner", 2), ("E", "", 5), ("E", "", 9), ("E", "", 10), ("B", "open", 11)]
    trace = read(tmp_path, [{"ph": ph, "name": name, "pid": 1, "tid": 1, "ts": ts} for ph, name, ts in marks])
    found = {
        trace.named(name): (start, end) for name, start, end in zip(trace.name, trace.start, trace.end, strict=True)
    }
    assert found == {"outer": (0, 8000), "inner": (1000, 4000)}
    assert "2 events with a beginning or an end only" in trace.notes[0]


def test_arguments_and_memory_are_kept(tmp_path):
    """Identifiers, streams, rare arguments and the allocator's reports arrive in their columns."""
    args = {"device": 0, "stream": 7, "correlation": 12, "External id": 3, "bytes": 64, "graph id": 2}
    operator = event("aten::mm", "cpu_op", pid=1, tid=1, ts=5, args={"external id": 3, "Input Dims": [[2, 3], []]})
    memory = {"Bytes": -8, "Addr": 99, "Total Allocated": 10, "Total Reserved": 20, "Device Id": 0, "Device Type": 1}
    instant = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 6, "args": memory}
    trace = read(
        tmp_path,
        {"traceEvents": [event(args=args), operator, instant], "distributedInfo": {"rank": 3, "world_size": 8}},
    )
    assert (trace.rank, trace.world_size) == (3, 8)
    assert trace.stream.tolist() == [-1, 7]
    assert trace.correlation.tolist() == [-1, 12]
    assert trace.external.tolist() == [3, 3]
    assert trace.number("bytes").tolist() == [-1, 64]
    assert trace.number("graph id").tolist() == [-1, 2]
    assert [trace.words[code] for code in trace.texts["Input Dims"].values] == ["[[2,3],[]]"]
    assert (trace.memory.bytes.tolist(), trace.memory.time.tolist(), trace.memory.device.tolist()) == (
        [-8],
        [1000],
        [0],
    )


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-12.json", 12),
        ("worker3_step_9.177.pt.trace.json", 3),
        ("trace_rank7.json", 7),
        ("prank3x.json", None),
        ("17-TP-2.trace.json", 2),
        ("deepseek-r1.json", None),
        ("model.json", None),
    ],
)
def test_rank_from_the_file_name(tmp_path, name, rank):
    """A trace that does not tell its rank has the one in its file name, or none."""
    assert read(tmp_path, [event()], name).rank == rank


def test_odd_values_fall_back_to_the_tolerant_decoder(tmp_path):
    """NaN, broken UTF-8, control characters and wrong types cost the event at most, never the trace."""
    rows = [
        b'{"ph":"X","cat":"kernel","name":"good","pid":0,"tid":7,"ts":1,"dur":2,"args":{"correlation":"0x10"}}',
        b'{"ph":"X","cat":"kernel","name":"nan","pid":0,"tid":7,"ts":NaN,"dur":2}',
        b'{"ph":"X","cat":"kernel","name":"inf","pid":0,"tid":7,"ts":1e999,"dur":2}',
        b'{"ph":"X","cat":"kernel","name":"bytes \xff\xfe","pid":0,"tid":7,"ts":2,"dur":2}',
        b'{"ph":"X","cat":"kernel","name":"tab\there \xc3\xa9","pid":0,"tid":7,"ts":3,"dur":null,"args":[1]}',
        b'{"ph":"X","cat":["kernel"],"name":{"a":1},"pid":[0],"tid":7,"ts":4,"dur":"x","args":null}',
        b'17, "text", null, [1,[2]]',
    ]
    trace = read(tmp_path, b"[" + b",\n".join(rows) + b"]")
    assert {trace.named(name) for name in trace.name} == {"good", "bytes ÿþ", "tab\there é", ""}
    assert trace.correlation[0] == 16
    assert "2 events without a usable time" in trace.notes[0]


def test_both_decoders_agree(tmp_path, monkeypatch):
    """The fast decoder and the tolerant one read the same, also across the edges of pieces."""
    events = [
        event(f"kernel {number % 7} é", ts=number * 10 + 0.125, args={"stream": 7, "Input Dims": [[number]]})
        for number in range(2000)
    ]
    content = {
        "meta": [{"a": 1}, {"b": "},{"}],
        "traceEvents": events,
        "after": [{"c": 1}, {"d": 2}],
        "displayTimeUnit": "ms",
    }
    fast = read(tmp_path, content)
    monkeypatch.setattr(trace_events, "_fast", lambda _text: [])
    slow = read(tmp_path, content)
    for key in ("start", "end", "name", "kind", "lane", "correlation"):
        assert (getattr(fast, key) == getattr(slow, key)).all()
    assert fast.names == slow.names
    assert fast.words == slow.words
    assert fast.facts == slow.facts
    assert fast.facts["meta"] == content["meta"]


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_pieces_of_any_size_give_the_same(tmp_path, monkeypatch, size):
    """Where the text is cut into pieces does not matter."""
    events = [event(f"k{number}", ts=number * 7, args={"list": [{"x": 1}, {"y": "}, {"}]}) for number in range(60)]
    whole = read(tmp_path, {"traceEvents": events, "baseTimeNanoseconds": 17})
    for module in ("text", "events"):
        monkeypatch.setattr(f"stepscope.importers.traces.{module}.PIECE", size)
    monkeypatch.setattr("stepscope.importers.traces.text.PACKED_PIECE", size + 1)
    for name in ("trace.json", "trace.json.gz"):
        cut = read(tmp_path, {"traceEvents": events, "baseTimeNanoseconds": 17}, name)
        assert cut.start.tolist() == whole.start.tolist()
        assert cut.names == whole.names
        assert cut.base == 17


def test_archives_hold_several_ranks(tmp_path):
    """A tar or zip archive gives every trace in it."""
    text = json.dumps([event()]).encode()
    packed = tmp_path / "job.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        for rank in range(3):
            info = tarfile.TarInfo(f"job/rank{rank}.json")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as archive:
        archive.writestr("rank4.json", text)
        archive.writestr("readme.txt", "no trace")
    assert [trace.rank for trace in read_traces(packed)] == [0, 1, 2]
    assert [trace.rank for trace in read_traces(tmp_path / "job.zip")] == [4]


def test_memory_timeline_is_read(tmp_path):
    """The raw form of a memory timeline gives allocations, and says that it holds no events."""
    trace = read(
        tmp_path, [[-1, 1, 512, 7], [100, 2, 64, 1], [150, 3, 64, 1], [200, 4, 64, 1]], "memory_timeline.raw.gz"
    )
    assert len(trace) == 0
    assert trace.memory.allocated.tolist() == [512, 576, 512]
    assert "memory timeline" in trace.notes[0]


def test_too_many_events_keep_the_device(tmp_path):
    """Past the limit short host events go, are counted, and every device event stays."""
    events = [event(ts=number * 10, args={"stream": 7, "bytes": number}) for number in range(300)]
    events += [event("op", "cpu_op", ts=number, dur=number % 50, pid=1, tid=1) for number in range(3000)]
    trace = read(tmp_path, {"traceEvents": events}, limits=TraceLimits(events=1000))
    assert int(trace.on_device.sum()) == 300
    assert trace.number("bytes")[trace.on_device].tolist() == list(range(300))
    assert len(trace) <= 1000
    assert trace.thinned
    assert "left out to bound memory" in trace.notes[0]


def test_too_many_device_events_end_the_window(tmp_path, monkeypatch):
    """Where even the device has too many events reading stops keeping them, and says how many came after."""
    for module in ("text", "events"):
        monkeypatch.setattr(f"stepscope.importers.traces.{module}.PIECE", 4096)
    monkeypatch.setattr("stepscope.importers.traces.text.PACKED_PIECE", 4096)
    trace = read(tmp_path, [event(ts=number * 10) for number in range(2000)], limits=TraceLimits(events=1000))
    assert 1000 < len(trace) < 1200
    assert trace.notes[0].startswith(f"{2000 - len(trace)} events after these were left out")


def test_too_many_names_become_one(tmp_path):
    """Past the limit new names share one."""
    trace = read(tmp_path, [event(f"name {number}", ts=number) for number in range(50)], limits=TraceLimits(texts=10))
    assert len(trace.names) == 11
    assert trace.names[-1] == "(other)"


BAD = {
    "empty": (b"", "it is empty"),
    "blank": (b"  \n ", "it is empty"),
    "text": (b"hello", "it is not JSON"),
    "picture": (b"\x89PNG\r\n\x1a\n123", "it is not JSON"),
    "number": (b"17", "it is not JSON"),
    "foreign": (b'{"a": 1, "b": [2]}', "holds no trace events"),
    "cut in an event": (b'{"traceEvents": [{"ph": "X", "ts": 1, "na', "cut off"),
    "cut between events": (b'{"traceEvents": [{"ph": "X", "ts": 1},', "cut off"),
    "cut after the events": (b'{"traceEvents": [{"ph": "X", "ts": 1}], "disp', "cut off"),
    "garbage between": (b'{"traceEvents": [{"ph": "X"} oops {"ph": "X"}]}', "it is not JSON"),
    "deep": (b'{"traceEvents": [' + b"[" * 1_000_000, "nested too deeply"),
    "deep array": (b"[" * 1_000_000, "nested too deeply"),
    "deep object": (b'{"traceEvents": [' + b'{"args":' * 1_000_000, "nested too deeply"),
    "endless digits": (b'{"x": ' + b"9" * 10_000 + b', "traceEvents": []}', "cannot be read"),
}


@pytest.mark.parametrize("content", BAD)
def test_what_is_no_trace_is_refused(tmp_path, content):
    """Foreign, truncated and hostile files end in an error that says what is wrong and what to do."""
    text, cause = BAD[content]
    with pytest.raises(StepscopeError, match=cause) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"cannot read the trace '{tmp_path}/trace.json': ")


def test_an_open_array_is_a_trace(tmp_path):
    """A trace that is one array may lack its closing bracket, as a program that was killed leaves it."""
    assert len(read(tmp_path, b'[{"ph": "X", "ts": 1, "dur": 2},\n{"ph": "X", "ts": 3, "dur": 1},\n')) == 2


def test_broken_compression_is_refused(tmp_path):
    """A compressed file that is cut off or damaged is refused."""
    packed = gzip.compress(json.dumps([event(f"k{number}") for number in range(500)]).encode())
    for broken in (packed[:-40], packed[:30] + b"\x00\x01\x02" + packed[33:], packed[:5]):
        path = tmp_path / "broken.json.gz"
        path.write_bytes(broken)
        with pytest.raises(StepscopeError, match=r"cut off|broken"):
            read_trace(path)


def test_a_bomb_is_stopped(tmp_path):
    """A file that expands a thousand times is refused long before it is expanded."""
    packer = zlib.compressobj(9, wbits=31)
    text = b"".join(packer.compress(b" " * (1 << 20)) for _ in range(100)) + packer.flush()
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(text)
    with pytest.raises(StepscopeError, match="as a bomb does"):
        read_trace(path)


@pytest.mark.parametrize(
    ("limits", "cause"),
    [
        (TraceLimits(text_bytes=100), "larger than 100 bytes"),
        (TraceLimits(value_bytes=1000), "one value in it is larger"),
        (TraceLimits(seconds=-1), "longer than"),
    ],
    ids=["text", "value", "time"],
)
def test_limits_hold(tmp_path, monkeypatch, limits, cause):
    """Size, size of one value and time are bounded."""
    for name in ("text.PIECE", "text.PACKED_PIECE", "events.PIECE"):
        monkeypatch.setattr(f"stepscope.importers.traces.{name}", 512)
    with pytest.raises(StepscopeError, match=cause):
        read(tmp_path, [event("k" * 9000)], limits=limits)


def test_missing_file_and_empty_archive(tmp_path):
    """A file that is not there, a folder and an archive without a trace are errors too."""
    with tarfile.open(tmp_path / "none.tar", "w"):
        pass
    for path in (tmp_path / "nowhere.json", tmp_path, tmp_path / "none.tar"):
        with pytest.raises(StepscopeError, match="cannot read the trace"):
            read_trace(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "B", "E", "M", "i", "s", "?"])}, optional={}
) | st.dictionaries(KEYS, JSON)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(events=st.lists(st.one_of(EVENT, JSON), max_size=8), wrapped=st.booleans())
def test_any_json_is_a_trace_or_an_error(tmp_path_factory, events, wrapped):
    """Whatever stands in the JSON, reading gives a trace whose columns agree, or an error of ours."""
    text = json.dumps({"traceEvents": events} if wrapped else events).encode()
    assert _survives(tmp_path_factory, text)


@settings(max_examples=150, deadline=None)
@given(text=st.binary(max_size=200), place=st.integers(0, 400))
@example(text=b"\\", place=30)
def test_any_damage_is_a_trace_or_an_error(tmp_path_factory, text, place):
    """Whatever bytes a trace is damaged by, reading gives a trace whose columns agree, or an error of ours."""
    good = json.dumps({"traceEvents": [event(f"k{number}", args={"stream": 1}) for number in range(4)]}).encode()
    assert _survives(tmp_path_factory, good[:place] + text + good[place + len(text) :])


def _survives(tmp_path_factory, text):
    """Say whether reading gives a trace whose columns agree, or an error of ours."""
    path = tmp_path_factory.mktemp("fuzz") / "trace.json"
    path.write_bytes(text)
    try:
        trace = read_trace(path)
    except StepscopeError:
        return True
    lengths = {len(column) for column in (trace.start, trace.end, trace.kind, trace.lane, trace.name)}
    indexed = trace.name.max(initial=-1) < len(trace.names) and trace.lane.max(initial=-1) < len(trace.lanes)
    return len(lengths) == 1 and indexed and (trace.end >= trace.start).all()
