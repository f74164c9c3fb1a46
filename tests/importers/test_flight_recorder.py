"""Dumps of PyTorch's flight recorder: the plain data in them is read, and nothing in them is ever executed."""

from __future__ import annotations

import io
import json
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.hang.verdict import judge
from stepscope.importers import flight_recorder, nccl_ras, plain_pickle
from stepscope.importers.flight_recorder import parse, parse_live, read_dumps
from stepscope.importers.plain_pickle import CutPickleError, UnsafePickleError, read_plain
from stepscope.sources.hang import dump_evidence

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED = Path(__file__).parents[3] / "shared" / "data" / "nvrx-flight-recorder"
SETS = ("lock_gil_1st", "gpu_error_2nd")
NEEDS_SHARED = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared NVRx dumps are not here")
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**500), 2**500) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=5), inner, max_size=5)
        | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=10,
)


def dump(rank: int, world: int = 2, **more: Any) -> dict[str, Any]:
    """Return a dump in which a rank waits in a collective."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    row = {"record_id": 1, "process_group": ("0", "default_pg"), "collective_seq_id": 5 + rank, "state": "scheduled"}
    row |= {"profiling_name": "nccl:all_reduce", "time_created_ns": 10**18}
    return {"version": "2.9", "pg_config": config, "pg_status": {}, "entries": [row], **more}


def write(folder: Path, name: str, facts: Any, protocol: int = 2) -> None:
    """Write a dump as torch does, or as JSON."""
    data = json.dumps(facts).encode() if name.endswith(".json") else pickle.dumps(facts, protocol)
    (folder / name).write_bytes(data)


def reason(read: Callable[[bytes], object], data: bytes) -> str | None:
    """Return why bytes were refused; None if they were read. Any other error than a ValueError fails the test."""
    try:
        read(data)
    except ValueError as error:
        return str(error)
    return None


@given(PLAIN, st.integers(0, 5))
def test_plain_data_reads_as_python_itself_reads_it(value: Any, protocol: int) -> None:
    """Every protocol, container and number."""
    assert read_plain(pickle.dumps(value, protocol)) == value


class Evil:
    """An object whose pickle would write a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what Python would call."""
        return os.mkdir, ("/tmp/stepscope-was-here",)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value",
    [Evil(), {"entries": [Evil()]}, io.BytesIO, {1, 2}.__class__, 1j],
    ids=["call", "call inside", "class", "type", "complex"],
)
def test_a_hostile_pickle_is_refused_with_its_reason(value: object, protocol: int) -> None:
    """Whatever would import or call something names the opcode, and does nothing."""
    with pytest.raises(UnsafePickleError, match="never executed"):
        read_plain(pickle.dumps(value, protocol))
    assert not Path("/tmp/stepscope-was-here").exists()


@pytest.mark.parametrize("data", [b"cos\nsystem\n.", b"Ppersistent\n.", b"\x80\x04K\x01Q.", b"\x82\x01.", b"\x97."])
def test_every_way_out_of_plain_data_is_refused(data: bytes) -> None:
    """Names, persistent ids, extension codes and buffers."""
    with pytest.raises(UnsafePickleError):
        read_plain(data)


@given(st.binary(max_size=200))
def test_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing but a ValueError comes out of any bytes."""
    assert reason(read_plain, b"\x80\x02" + data) != ""


@given(st.data())
def test_a_changed_dump_is_read_or_refused(data: st.DataObject) -> None:
    """Flip or cut any bytes of a real one: it reads as other plain data, or is refused."""
    whole = bytearray(pickle.dumps(dump(0), 2))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for one in (bytes(whole), cut):
        assert reason(parse, one) != ""


@given(st.data())
def test_the_start_of_a_cut_dump_holds_only_whole_rows(data: st.DataObject) -> None:
    """Wherever a dump ends, no row in it is half, and none differs from the whole dump."""
    rows = [{"record_id": number, "process_group": ("0", "pg"), "sizes": [[1, 2]]} for number in range(4)]
    whole = pickle.dumps({"version": "2.9", "pg_status": {"0": {"last": 3}}, "entries": rows}, 2)
    with pytest.raises(CutPickleError) as caught:
        read_plain(whole[: data.draw(st.integers(0, len(whole) - 1))])
    found = caught.value.start or {}
    assert found.get("entries", []) == rows[: len(found.get("entries", []))]
    assert found.get("pg_status", {}) in ({}, {"0": {}}, {"0": {"last": 3}})


@NEEDS_SHARED
@pytest.mark.parametrize("rank", [*range(9), *range(10, 14), 15])
def test_a_cut_dump_blames_nobody(tmp_path: Path, rank: int) -> None:
    """What is missing in a dump that is cut does not count as a collective that its rank never entered."""
    for number in range(16):
        data = (SHARED / "lock_gil_1st" / f"_dump_{number}").read_bytes()
        (tmp_path / f"_dump_{number}").write_bytes(data[: len(data) // 2] if number == rank else data)
    evidence, problems = dump_evidence([tmp_path])
    assert judge(evidence).ranks == (9, 14)
    assert problems == [f"{tmp_path}/_dump_{rank}: its end is missing; only its start is used"]


def test_a_bomb_is_stopped() -> None:
    """Depth, size of numbers, keys that hash deeply, and time have a limit each."""
    deep = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    assert isinstance(read_plain(deep), list)
    tuples = b"\x80\x02}" + b")" + b"\x85" * 300_000 + b"K\x01s."
    with pytest.raises(ValueError, match="a key is a tuple"):
        read_plain(tuples)
    with pytest.raises(ValueError, match="too long"):
        read_plain(b"\x80\x02\x8b" + (1 << 20).to_bytes(4, "little") + b"\x01" * (1 << 20) + b".")
    with pytest.raises(ValueError, match="too long to read"):
        read_plain(b"\x80\x02" + b"N0" * 100_000 + b"N.", clock=iter(range(0, 900, 9)).__next__)
    with pytest.raises(ValueError, match="cut"):
        read_plain(b"\x80\x02X" + (2**31 - 1).to_bytes(4, "little") + b"abc.")
    with pytest.raises(ValueError, match="cut or damaged"):
        read_plain(b"\x80\x02h\x07.")


def test_a_dump_of_many_small_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte of a pickle, or three of JSON, can make an object of 64 bytes: their number is limited."""
    monkeypatch.setattr(plain_pickle, "MOST_OPERATIONS", 50_000)
    with pytest.raises(ValueError, match="more objects than a dump may"):
        read_plain(b"\x80\x04]" + (b"(" + b"]" * 1000 + b"e") * 100 + b".")
    monkeypatch.setattr(flight_recorder, "MOST_VALUES", 1000)
    with pytest.raises(ValueError, match="more values than a dump may"):
        flight_recorder.parse(b'{"entries": [' + b"[]," * 1000 + b"[]]}")


def test_times_that_no_clock_shows_are_left_out() -> None:
    """A number of a thousand digits has no place among seconds."""
    row = {"time_created_ns": 10**1000}
    assert flight_recorder.newest({"entries": [row, {"time_created_ns": 2 * 10**9}]}) == 2.0
    assert flight_recorder.newest({"entries": [row]}) is None


@NEEDS_SHARED
@pytest.mark.parametrize("lost", [(), (9, 14)], ids=["all dumps", "without those of the cause"])
@pytest.mark.parametrize("name", SETS)
def test_the_injected_ranks_of_the_shared_dumps_are_named(name: str, lost: tuple[int, ...]) -> None:
    """Ranks 9 and 14 and no other, also if they left no dump; 16 dumps of Megatron with experts and two stages."""
    paths = [SHARED / name / f"_dump_{rank}" for rank in range(16) if rank not in lost]
    evidence, problems = dump_evidence(paths)
    found = judge(evidence)
    assert not problems
    assert found.ranks == (9, 14), found.text
    assert found.kind == ("dead_rank" if lost else "never_arrived")


@NEEDS_SHARED
def test_our_reader_and_pickle_agree_on_the_shared_dumps() -> None:
    """The whole content is the same."""
    for path in SHARED.glob("*/_dump_*"):
        assert parse(path.read_bytes()) == pickle.loads(path.read_bytes())


def test_bad_files_cost_one_sentence_each(tmp_path: Path) -> None:
    """What is cut, hostile, huge, of another job, twice there, or no dump is named, and the rest is used."""
    for rank in (0, 1):
        write(tmp_path, f"_dump_{rank}", dump(rank))
    (tmp_path / "_dump_2").write_bytes(pickle.dumps(dump(1))[:20])
    (tmp_path / "_dump_3").write_bytes(pickle.dumps({"entries": Evil()}))
    write(tmp_path, "nccl_trace_rank_1", dump(1))
    write(tmp_path, "_dump_5", dump(1, world=64))
    write(tmp_path, "_dump_6", [1, 2])
    write(tmp_path, "_dump_7", dump(1, version="3.0"))
    write(tmp_path, "_dump_8.json", {**dump(1), "entries": [{"time_created_ns": 5}]})
    (tmp_path / "_dump_9").mkdir()
    (tmp_path / "_dump_11").touch()
    with (tmp_path / "_dump_10").open("wb") as file:
        file.truncate(10 << 30)
    found = read_dumps([tmp_path, tmp_path / "gone_11"])
    told = {line.partition(": ")[0].rpartition("/")[2]: line for line in found.problems}
    assert sorted(found.records) == [0, 1]
    assert len(told) == len(found.problems) == 11
    assert told["_dump_11"].endswith("not used: it is empty")
    assert "never executed" in told["_dump_3"]
    assert "10 GiB" in told["_dump_10"]
    assert "64 ranks" in told["_dump_5"]
    assert "format is 3.0" in told["_dump_7"]
    assert "is of rank 1, too" in told["nccl_trace_rank_1"]
    assert "does not exist" in told["gone_11"]


def test_pickle_and_json_say_the_same(tmp_path: Path) -> None:
    """torch writes both."""
    for rank in (0, 1):
        write(tmp_path, f"comm_lib_trace_rank_{rank}.json", dump(rank))
    evidence, problems = dump_evidence([tmp_path])
    assert not problems
    assert judge(evidence).ranks == (0,)


def test_of_two_records_of_a_live_rank_the_one_in_which_it_waits_is_taken() -> None:
    """NCCL's and that of the other backends follow each other; without any there is a reason."""
    over = dump(0)
    over["entries"][0] |= {"state": "completed", "retired": True}
    empty, waits = {**dump(0), "entries": []}, dump(1)
    for records, chosen in (((over, waits), waits), ((waits, over), waits), ((empty, over), over), ((over,), over)):
        assert parse_live(b"".join(pickle.dumps(one, 2) for one in records)) == chosen
    assert reason(parse_live, b"") == "it is empty"
    assert "cut" in str(reason(parse_live, pickle.dumps(over, 2) + pickle.dumps(waits, 2)[:-9]))


def test_too_many_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is used."""
    monkeypatch.setattr(flight_recorder, "MOST_FILES", 1)
    for rank in (0, 1):
        write(tmp_path, f"_dump_{rank}", dump(rank))
    found = read_dumps([tmp_path])
    assert sorted(found.records) == [0]
    assert "1 of 2 files" in found.problems[0]


RAS = {
    "nccl_version": "2.28.9",
    "communicators": [
        {
            "hash": "0xab",
            "size": 3,
            "ranks": [{"rank": 0, "collective_counts": {"AllReduce": 7}}, {"rank": 1, "collective_counts": {}}],
            "missing_ranks": [
                {"rank": 2, "considered_dead": True, "unresponsive": True},
                {"rank": 3, "considered_dead": False, "unresponsive": True},
            ],
        }
    ],
}


def test_ras_of_nccl_2_28_9_is_read_without_its_comma() -> None:
    """It leaves out the comma between two missing ranks."""
    text = json.dumps(RAS, indent=2)
    broken = text.replace('"unresponsive": true\n        },\n', '"unresponsive": true\n        }\n')
    assert broken != text
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(broken)
    assert nccl_ras.parse(broken.encode()) == RAS


@given(st.integers(30, len(json.dumps(RAS, indent=2)) - 1))
def test_a_cut_ras_output_keeps_what_is_whole(end: int) -> None:
    """What came before the cut is read, and marked as cut."""
    found = nccl_ras.parse(json.dumps(RAS, indent=2)[:end].encode())
    assert found["is_cut"] is True
    assert found["nccl_version"] == "2.28.9"


@given(st.text(max_size=200))
def test_any_ras_output_is_read_or_refused(text: str) -> None:
    """Text of old versions names its ranks; anything else is refused with a reason."""
    assert reason(nccl_ras.parse, text.encode()) != ""


@pytest.mark.parametrize("part", [b"\n", b'\\"', b"[1,", b'{"b":1,', b'"k":', b"1, ", b"} "])
def test_a_long_hostile_ras_output_does_not_take_long(part: bytes) -> None:
    """Many signs after an open bracket: time grows with the length, not with its square."""
    assert reason(nccl_ras.parse, b'{"a":[l' + part * (1 << 18)) is not None


def test_ras_as_text_names_its_dead_ranks() -> None:
    """Versions before 2.28 print no JSON."""
    found = nccl_ras.parse(
        b"NCCL version 2.24\nCommunicator 0xab\n  Rank 5 -- GPU 1 ... is dead\n  Rank 4 is RUNNING\n"
    )
    assert found["missing_ranks"] == [{"rank": 5, "status": "dead"}]


def test_a_dump_with_the_name_of_another_rank_is_known_by_its_groups(tmp_path: Path) -> None:
    """A rank records only groups that it is in; a file that has the right name goes first."""
    for name, rank in (("_dump_0", 0), ("_dump_2", 1), ("_dump_3", 0), ("trace_dump", 2)):
        facts = dump(rank, 3)
        facts["pg_config"]["5"] = {"name": "5", "desc": "own", "ranks": f"[{rank}]"}
        write(tmp_path, name, facts)
    own, other = (tmp_path / name for name in ("_dump_0", "_dump_4"))
    write(tmp_path, "_dump_4", {**dump(0), "pg_config": {"5": {"ranks": "[0, 1]"}}})
    found = read_dumps([*sorted(tmp_path.iterdir())])
    assert sorted(found.records) == [0, 1, 2]
    assert found.problems == [
        f"{other}: not used: rank 4 is not in the groups that it names",
        f"{tmp_path}/_dump_2: used as the dump of rank 1, by its groups",
        f"{tmp_path}/_dump_3: not used: {own.name} is of rank 0, too",
    ]


def test_a_dump_that_is_nested_too_deep_is_refused_in_plain_words(tmp_path: Path) -> None:
    """The sentence of Python's decoder says nothing to a user."""
    (tmp_path / "_dump_0").write_text('{"entries": ' + "[" * 200_000 + "]" * 200_000 + "}")
    assert read_dumps([tmp_path]).problems == [f"{tmp_path}/_dump_0: not used: its lists are nested too deep"]
