from __future__ import annotations

import gzip
import json
import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stepscope.core.errors import StepscopeError
from stepscope.importers import formats, run_builder, source, transfer, words
from tests.importers.foreign import SAMPLES
from tests.importers.tracker_files import FOLDERS, folder


def write(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    return str(path)


def refusal(path, form):
    """Return why a file cannot be read; empty if it can."""
    try:
        transfer.read(path, form)
    except StepscopeError as error:
        return str(error)
    return ""


def test_a_gzip_bomb_is_not_unpacked_whole(tmp_path):
    """256 MiB of zeros in 256 KB: looking at it takes no more memory than its head."""
    path = write(tmp_path, gzip.compress(bytes(1 << 20)) * 256)
    tracemalloc.start()
    with pytest.raises(StepscopeError, match="no format"):
        formats.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 * source.HEAD_BYTES


def test_a_document_beyond_its_limit_is_refused(tmp_path, monkeypatch):
    """A JSON document is decoded whole, so its size is bounded, packed or not."""
    monkeypatch.setattr(source, "MOST_DOCUMENT_BYTES", 1000)
    state = b'{"log_history": [' + b" " * 2000 + b"]}"
    for data in (state, gzip.compress(state)):
        with pytest.raises(StepscopeError, match="larger than"):
            formats.read(write(tmp_path, data))


def test_a_file_beyond_its_limit_is_read_up_to_it(tmp_path, monkeypatch):
    """What follows is not read, and that is noted."""
    monkeypatch.setattr(source, "MOST_BYTES", 100)
    (run,) = formats.read(write(tmp_path, b'{"step": 1, "loss": 2}\n' * 10))
    assert len(run.series("loss")) == 4
    assert any("what follows is not read" in note for note in run.notes)


def test_a_line_beyond_its_limit_is_left_out(tmp_path, monkeypatch):
    """A line without an end does not fill the memory."""
    monkeypatch.setattr(source, "MOST_LINE_BYTES", 1000)
    row = b'{"step": 1, "loss": 2}\n'
    (run,) = formats.read(write(tmp_path, row + b'{"a": "' + b"x" * 500_000 + b'"}\n' + row))
    assert len(run.series("loss")) == 2
    assert any("left out" in note for note in run.notes)


def test_points_and_names_are_bounded():
    """More than the limits is counted, never kept."""
    some_points = run_builder.RunBuilder(most_points=3, most_names=2)
    for index in range(4):
        some_points.add("a", index)
        some_points.add(f"b{index}", index)
    run = some_points.imported("path", "format")
    assert sum(len(run.series(name)) for name in run.names()) == 3
    assert run.names() == ["a", "b0"]
    assert run.notes == ("points beyond the limit, left out (5 times)",)


def test_hostile_names_are_shown_harmless():
    """Control characters and directional marks of a name are replaced, and a long name is cut."""
    assert words.clean("lo\x1b[31mss\u202e\n") == "lo?[31mss??"
    assert len(words.clean("x" * 10_000)) == words.MOST_NAME
    assert words.clean("\n") == "?"


@given(some.text(), some.lists(some.text(max_size=8)))
def test_renaming_never_makes_two_metrics_one(name, others):
    """Whatever names a source has, as many come out."""
    names = {name, *others, "loss", "train_loss", "lm loss", "lr"}
    found = words.canonical_names(names)
    assert found.keys() == names
    assert len(set(found.values())) == len(names)
    assert found["loss"] == "loss"
    assert found["lr"] == "learning_rate"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (1.7e9, 1.7e9),
        (1.7e12, 1.7e9),
        (1.7e15, 1.7e9),
        (1.7e18, 1.7e9),
        ("1700000000", 1.7e9),
        ("2023-11-14T22:13:20Z", 1.7e9),
        ("2023/11/14 22:13:20.000", 1.7e9),
        ("2023-11-14T23:13:20+01:00", 1.7e9),
        ("yesterday", math.nan),
        (None, math.nan),
        (True, math.nan),
    ],
)
def test_times_of_any_unit(text, seconds):
    """Seconds, milli-, micro- and nanoseconds are told by their size; texts are ISO 8601."""
    assert words.moment(text) == pytest.approx(seconds, nan_ok=True)


@pytest.mark.parametrize(
    ("value", "number"), [(1, 1.0), (True, None), ("NaN", math.nan), ("3", None), (10**400, None), (None, None)]
)
def test_numbers_are_numbers(value, number):
    """Truth and text are no numbers; NaN as text is; an integer beyond a float is none."""
    assert words.number(value) == pytest.approx(number, nan_ok=True)


@pytest.mark.parametrize(("value", "step"), [(31.0, 31), (math.nan, None), (-math.inf, None), (10**400, None)])
def test_a_step_fits_64_bits_or_is_none(value, step):
    """One absurd step, even one beyond a float, does not end the import of a log."""
    assert words.whole(value) == step


def is_sound(run):
    """Say whether series have points, each with its time, and the facts are plain data."""
    series = [run.series(name) for name in run.names()]
    return all(len(each.step) == len(each.time) > 0 for each in series) and json.dumps(run.facts, allow_nan=True)


@given(some.sampled_from(list(SAMPLES)), some.integers(0), some.integers(0), some.binary(max_size=12), some.booleans())
def test_damaged_files_of_every_format_are_read_or_refused(tmp_path_factory, name, begin, length, put, forced):
    """Whatever part of a file is replaced by whatever: runs or a StepscopeError come out, nothing else."""
    data = SAMPLES[name] * 3
    begin, length = begin % len(data), length % len(data)
    path = write(tmp_path_factory.getbasetemp(), data[:begin] + put + data[begin + length :])
    try:
        runs = formats.read(path, name if forced else None)
    except StepscopeError:
        return
    assert all(map(is_sound, runs))


@given(some.sampled_from(list(FOLDERS)), some.integers(0), some.integers(0), some.integers(0), some.binary(max_size=12))
def test_damaged_folders_of_every_format_are_read_or_refused(tmp_path_factory, name, which, begin, length, put):
    """The same for formats that are folders: one of the files is damaged, or missing."""
    file, data = list(FOLDERS[name].items())[which % len(FOLDERS[name])]
    begin, length = begin % len(data), length % len(data)
    place = folder(FOLDERS[name], tmp_path_factory.getbasetemp() / name)
    (place / file).write_bytes(data[:begin] + put + data[begin + length :])
    try:
        runs = formats.read(str(place), name)
    except StepscopeError:
        return
    assert all(map(is_sound, runs))


@given(
    some.sampled_from(list(SAMPLES)),
    some.text(alphabet="step: =|,{}[]'\"0123456789.eE-+nainf/%\n\tMWiBabc#_", max_size=400),
)
def test_texts_of_any_kind_are_read_or_refused(tmp_path_factory, name, text):
    """The same for texts that look like logs."""
    path = write(tmp_path_factory.getbasetemp(), text.encode())
    for form in (None, name):
        try:
            runs = formats.read(path, form)
        except StepscopeError:
            continue
        assert all(map(is_sound, runs))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["step" * 200_000, "step 1 " + "a" * 500_000, "step 1 " + "a:" * 200_000, "1|" * 300_000, " " * 900_000]
)
def test_no_line_takes_long(text, tmp_path):
    """No pattern runs away: one that took quadratic time would go on for hours; the child is ended after minutes."""
    path = write(tmp_path, (text + "\n").encode() * 2)
    for form in (None, "step_log", "console_log", "megatron", "nvidia_smi", "csv"):
        assert "processor time" not in refusal(path, form)


@pytest.mark.parametrize("damage", [b'"infNaN"', b"[]", b"true", b"1e999"])
def test_a_value_of_a_training_logger_that_is_no_number_is_left_out(damage, tmp_path):
    """What fuzzing has found: a damaged value costs itself, not the file."""
    data = SAMPLES["training_logger"].replace(b'"inf"', damage)
    (run,) = formats.read(write(tmp_path, data))
    assert len(run.series("loss")) >= 2


def test_titles_that_are_damaged_do_not_end_the_reader(tmp_path):
    """What fuzzing has found: a lone carriage return in the titles of our own CSV."""
    data = SAMPLES["stepscope"].replace(b"value\n", b"value\r")
    assert all(run.format for run in formats.read(write(tmp_path, data), "stepscope"))


def test_every_format_has_a_sample():
    """The tests that damage files damage those of every format."""
    assert {*SAMPLES, *FOLDERS} == set(formats.FORMATS)


def test_files_beyond_the_limit_are_said(tmp_path, monkeypatch):
    """A folder with too many files is read as far as allowed, and what is missing is an error of the usual kind."""
    monkeypatch.setattr(formats, "MOST_FILES", 3)
    for name in "abcde":
        (tmp_path / name).write_text('{"step": 1, "loss": 0.5}\n' * 3)
    found = formats.survey(str(tmp_path))
    assert len(found.batches) == 3
    assert "more than 3 files; the others are left out; give" in str(found.problems[0])
