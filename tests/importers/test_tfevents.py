from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from stepscope.importers.binary import tfevents
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
