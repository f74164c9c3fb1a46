from __future__ import annotations

import math
import struct
import sys
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from stepscope.importers.binary import event_columns, tfevents
from stepscope.importers.binary.wire import fields
from tests.importers.foreign import event, event_file, field, scalar, shared, single


def read(tmp_path, data):
    path = tmp_path / "events"
    path.write_bytes(data)
    return tfevents.FORMAT.read(str(path))


def test_the_real_file_is_read_whole():
    """Six scalars of seventeen steps each, by TensorBoard's own count; graph and images are passed over."""
    run = tfevents.FORMAT.read(str(shared("wandb-tb-samples/events.out.tfevents.1585769947.cvp")))
    assert {name: len(run.series(name)) for name in run.names()} == dict.fromkeys(
        ("batch_acc", "batch_loss", "epoch_acc", "epoch_loss", "epoch_val_acc", "epoch_val_loss"), 17
    )
    assert run.series("epoch_loss").value[0] == np.float32(3.9135773)
    assert run.series("epoch_loss").step.tolist() == list(range(17))
    assert 1585769946 < run.series("epoch_loss").time[0] < 1585769999
    assert run.notes == ()


@given(some.lists(some.tuples(some.integers(-(2**63), 2**63 - 1), some.floats(width=32), some.floats(0, 2e9))))
def test_what_is_written_is_read_back(tmp_path_factory, points):
    """Steps, times and values come back as they were, whatever they are."""
    folder = tmp_path_factory.mktemp("events")
    run = read(folder, event_file(*(event(step, time, scalar("x", value)) for step, value, time in points)))
    series = run.series("x")
    assert series.step.tolist() == [step for step, _, _ in points]
    assert series.time.tolist() == [time for _, _, time in points]
    assert np.array_equal(series.value, np.array([value for _, value, _ in points]), equal_nan=True)


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        (field(1, 1) + field(4, struct.pack("<f", 0.5)), 0.5),
        (field(1, 1) + single(5, 0.5), 0.5),
        (field(1, 1) + field(5, struct.pack("<f", 0.5)), 0.5),
        (field(1, 2) + field(6, struct.pack("<d", 0.1)), 0.1),
        (field(1, 3) + field(7, -3), -3.0),
        (field(1, 9) + field(10, b"\x07"), 7.0),
        (field(1, 9) + field(4, struct.pack("<q", -7)), -7.0),
        (field(1, 19) + field(13, b"\x80\x70"), 0.5),
        (field(1, 14) + field(4, b"\x00\x3f"), 0.5),
        (field(1, 7) + field(8, "text"), None),
        (field(1, 1) + field(2, field(2, field(1, 3))) + field(4, bytes(12)), None),
        (field(1, 1) + field(4, bytes(3)), None),
    ],
)
def test_a_tensor_of_one_number_is_a_scalar(tensor, value):
    """TensorFlow 2 writes scalars as tensors, in any of their types; texts and vectors are none."""
    assert tfevents.tensor_scalar(tensor) == value


def test_a_new_session_is_a_new_attempt(tmp_path):
    """After a restart the same steps come again."""
    first, again = event(1, 1.0, scalar("x", 1.0)), event(1, 9.0, scalar("x", 2.0))
    run = read(tmp_path, event_file(event(0, 0.0, session=1), first, event(1, 8.0, session=1), again))
    assert run.series("x").attempt.tolist() == [0, 1]


def test_hyperparameters_are_facts(tmp_path):
    """What the HParams plugin keeps is told."""
    pairs = field(1, field(1, "lr") + field(2, field(2, 0.1))) + field(1, field(1, "name") + field(2, field(3, "x")))
    metadata = field(1, field(1, "hparams") + field(2, field(3, pairs)))
    run = read(tmp_path, event_file(event(0, 1.0, field(1, "_hparams_/session_start_info") + field(9, metadata))))
    assert run.facts["hparams"] == {"lr": 0.1, "name": "x"}


def test_every_cut_leaves_the_records_before_it(tmp_path):
    """A file that is cut anywhere is read up to the cut, with a note."""
    events = [event(step, 1.0, scalar("x", step)) for step in range(4)]
    data, ends = event_file(*events), [len(event_file(*events[:count])) for count in range(5)]
    for cut in range(ends[0], len(data)):
        run = read(tmp_path, data[:cut])
        assert len(run.series("x")) == sum(end <= cut for end in ends[1:])
        assert bool(run.notes) == (cut not in ends)


def test_a_flipped_bit_never_gives_a_wrong_value(tmp_path):
    """A record whose checksum is wrong is left out, and so is what cannot be found behind it."""
    data = bytearray(event_file(*(event(step, 1.0, scalar("x", step)) for step in range(4))))
    for place in range(len(event_file()), len(data)):
        data[place] ^= 0x10
        series = read(tmp_path, bytes(data)).series("x")
        data[place] ^= 0x10
        assert len(series) < 4
        assert set(zip(series.step.tolist(), series.value.tolist(), strict=True)) <= {(step, step) for step in range(4)}


def test_large_records_cross_the_pieces_that_are_read(tmp_path):
    """An image of several hundred kilobytes does not disturb the scalars around it."""
    image = field(1, "image") + field(4, bytes(300_000))
    run = read(
        tmp_path, event_file(event(1, 1.0, scalar("x", 1.0)), event(1, 1.0, image), event(2, 1.0, scalar("x", 2.0)))
    )
    assert run.series("x").value.tolist() == [1.0, 2.0]


@given(some.binary())
def test_any_bytes_are_fields_or_a_value_error(data):
    """The decoder of protocol buffers ends, and raises nothing else."""
    try:
        assert all(math.isfinite(each.integer) for each in fields(data))
    except ValueError:
        return


TAGS = some.sampled_from(
    ["x", "train/loss", "学习率", "b" * 110, "c" * 130, "y\udcff".encode("utf-8", "surrogateescape")]
)
STEPS = some.one_of(some.integers(0, 300), some.integers(-(2**63), 2**63 - 1))
VALUES = some.builds(scalar, TAGS, some.floats(width=32))
OTHERS = some.builds(lambda tag: field(1, tag) + field(4, b"image"), TAGS)
EVENTS = some.one_of(
    some.builds(event, STEPS, some.floats(), VALUES),
    some.builds(event, STEPS, some.floats(), VALUES, some.one_of(VALUES, OTHERS)),
    some.builds(lambda time, value: field(1, time) + field(5, field(1, value)), some.floats(), VALUES),
    some.builds(lambda step, status: event(step, 1.0, session=status), STEPS, some.integers(0, 2)),
    some.binary(max_size=40),
)


@contextmanager
def decoded(few, piece):
    """Decode records in bulk from `few` of one size on, and read pieces of some bytes."""
    with patch.object(event_columns, "FEW", few), patch.object(tfevents, "PIECE", piece):
        yield


def as_told(run):
    """Return all that is in a run, so that it can be compared."""
    columns = {name: [column.tobytes() for column in list_of(series)] for name, series in run.columns.items()}
    return list(columns.items()), run.facts, run.notes


def list_of(series):
    return [series.step, series.time, series.value, series.rank, series.attempt]


@given(some.lists(EVENTS, max_size=30), some.integers(1, 3), some.data())
def test_many_records_at_once_are_read_as_one_by_one(tmp_path_factory, events, times, data):
    """Decoding in bulk gives what decoding each record gives: also of damaged files, and of pieces of any size."""
    content = bytearray(event_file(*events * times))
    for place in data.draw(some.lists(some.integers(0, len(content) - 1), max_size=3)):
        content[place] ^= data.draw(some.integers(1, 255))
    cut = data.draw(some.sampled_from([len(content), data.draw(some.integers(0, len(content)))]))
    folder = tmp_path_factory.mktemp("events")
    with decoded(few=sys.maxsize, piece=2**22):
        one_by_one = as_told(read(folder, bytes(content[:cut])))
    with decoded(few=1, piece=data.draw(some.sampled_from([2**22, 1, 50, 1000]))):
        assert as_told(read(folder, bytes(content[:cut]))) == one_by_one


@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
def test_values_are_those_that_tensorboard_reads(tmp_path, module):
    """Each point of a real file stands as TensorBoard's own reader has it, in the order of the file."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    writer = pytest.importorskip(module).SummaryWriter(str(tmp_path))
    for step in [*range(300), 7, 7, 5, -3, 2**40]:
        for value, tag in enumerate(["loss", "学习率", "a/b c", "x" * 120]):
            writer.add_scalar(tag, [math.nan, math.inf, -math.inf, step + 0.1][(step + value) % 4], step)
    writer.close()
    [path] = tmp_path.iterdir()
    told: dict[str, list[tuple[int, float, float]]] = {}
    for each in loader.LegacyEventFileLoader(str(path)).Load():
        for value in each.summary.value:
            told.setdefault(value.tag, []).append((each.step, each.wall_time, value.simple_value))
    run = tfevents.FORMAT.read(str(path))
    assert len(told) == 4
    for tag, points in told.items():
        series = run.series(tag)
        assert list(map(repr, zip(series.step, series.time, series.value, strict=True))) == [
            repr((np.int64(step), np.float64(time), np.float64(value))) for step, time, value in points
        ]
