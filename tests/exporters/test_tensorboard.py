from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.columns import RowSchema, SchemaTable
from stepscope.core.feed import Subject
from stepscope.core.records import RECORD, SCHEMA_PAIRS
from stepscope.exporters import TensorBoardMonitor
from stepscope.exporters.files.selection import choose
from stepscope.exporters.tensorboard import export as tensorboard
from stepscope.exporters.tensorboard import records
from stepscope.exporters.tensorboard.export import scalars
from stepscope.exporters.tensorboard.feed import TensorBoardFeed, open_feed
from stepscope.exporters.tensorboard.monitor import SummaryWriter
from stepscope.importers.binary import tfevents
from stepscope.sources.opened_run import open_run
from stepscope.store.points import Points
from tests.exporters.recorded import CREATED, make_run, points_of, seal_points, without_steps

FLOATS = st.floats() | st.sampled_from([0.1, 3.4e38, 3.5e38, -1e300, 5e-324, 1.0, 16_777_217.0])
STEPS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)


def accumulated(folder):
    """Read a folder as stock TensorBoard does."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no TensorBoard here")
    found = module.EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    return found.Reload()


def values(folder, tag):
    return [(event.step, event.value) for event in accumulated(folder).Scalars(tag)]


@given(st.lists(st.tuples(STEPS, FLOATS), max_size=20), st.text(max_size=5))
def test_many_records_are_the_bytes_of_single_ones(points, tag):
    """Encoding by columns gives the same bytes as one event after another, whatever step, value and tag are."""
    steps, numbers = np.array([step for step, _ in points], np.int64), np.array([value for _, value in points])
    times = np.arange(len(points)) + 0.5
    single = b"".join(
        records.event(float(time), step, [records.scalar(tag.encode("utf-8", "replace"), value)])
        for time, (step, value) in zip(times, points, strict=True)
    )
    assert b"".join(scalars(tag, times, steps, numbers.astype(np.float64))) == single


@given(STEPS, FLOATS)
def test_an_event_reads_back_to_the_same_bits(step, value):
    """Our own reader gets step and value as they were, though TensorBoard keeps 32 bits only."""
    whole = records.event(1.5, step, [records.scalar(b"x", value)])
    event = tfevents.decode(whole[12:-4])
    assert (event.time, event.step) == (1.5, step)
    [(_, found)] = event.scalars
    assert math.isnan(value) if math.isnan(found) else struct.pack("d", found) == struct.pack("d", value)


@pytest.mark.promise("S0-028", "S4-047")
def test_stock_tensorboard_reads_an_export(tmp_path):
    """TensorBoard gets every value of an export under the metric's name; further ranks are runs of their own."""
    folder = make_run(tmp_path / "runs")
    samples = without_steps(points_of({"cpu/usage_ratio": [0.5, 0.6]}, rank=-1))
    parts = [points_of({"loss": [0.5, math.nan, math.inf]}), points_of({"loss": [9.0]}, rank=1), samples]
    seal_points(folder, Points.concat(parts))
    past = open_run(folder.path)
    tensorboard.write(past, choose(past), tmp_path / "out")
    assert values(tmp_path / "out" / "rank1", "loss") == [(0, 9.0)]
    (tmp_path / "alone").mkdir()
    next((tmp_path / "out").glob("events*")).rename(tmp_path / "alone" / "events.out.tfevents.1")
    found = values(tmp_path / "alone", "loss")
    assert [step for step, _ in found] == [0, 1, 2]
    assert found[0][1] == 0.5
    assert math.isnan(found[1][1])
    assert found[2][1] == math.inf
    read = accumulated(tmp_path / "alone").Scalars("cpu/usage_ratio")
    assert [round(event.wall_time * 1e6) - CREATED for event in read] == [0, 1000]


@pytest.mark.promise("S0-021", "S0-022", "S0-023", "S0-024", "S0-027")
def test_the_monitor_writes_the_documents_tags(tmp_path):
    """Training and resource metrics get their tags, nested dictionaries at any depth; closing twice is fine."""
    with TensorBoardMonitor(str(tmp_path)) as monitor:
        assert monitor.start_time > 0
        monitor.log_training_metrics(3, {"loss": 0.5, "lr": np.float32(0.25)})
        nested = {"cpu_percent": 7.0, "gpu_metrics": {"gpu_0": {"memory_allocated": 12.0}}, "name": "text"}
        monitor.log_resource_metrics(4, nested)
        monitor.writer.add_scalar("direct", True, 1)
        monitor.close()
    tags = accumulated(tmp_path).Tags()["scalars"]
    assert sorted(tags) == [
        *("direct", "resources/cpu_percent", "resources/gpu_metrics/gpu_0/memory_allocated"),
        *("training/loss", "training/lr"),
    ]
    assert values(tmp_path, "training/loss") == [(3, 0.5)]


class Tensor:
    """As much of a tensor as a histogram reads."""

    def __init__(self, numbers):
        self.numbers = numbers

    def detach(self):
        return self

    cpu = double = detach

    def numpy(self):
        return np.array(self.numbers, np.float64)


class Parameter:
    def __init__(self, data, grad):
        self.data = Tensor(data)
        self.grad = None if grad is None else type("Grad", (), {"data": Tensor(grad)})()


class Model:
    def __init__(self, **parameters):
        self.parameters = parameters

    def named_parameters(self):
        return self.parameters.items()


@pytest.mark.promise("S0-025", "S0-026")
def test_histograms_of_parameters(tmp_path, capsys):
    """Parameters with a gradient give two histograms; NaN, empty and huge tensors never raise."""
    model = Model(
        w=Parameter([1.0, 2.0, 4.0], [0.0, 0.0]),
        frozen=Parameter([1.0], None),
        empty=Parameter([], [math.nan]),
        huge=Parameter([-1.7e308, 1.7e308, math.inf], [5e-324]),
    )
    with TensorBoardMonitor(tmp_path) as monitor:
        monitor.log_model_parameters(1, model)
        monitor.writer.add_histogram("wrong", object(), 1)
        assert monitor.writer.refused == 3
    read = accumulated(tmp_path)
    assert sorted(read.Tags()["histograms"]) == [
        *("gradients/huge", "gradients/w", "parameters/huge", "parameters/w"),
    ]
    [event] = read.Histograms("parameters/w")
    figures = event.histogram_value
    assert (figures.num, figures.min, figures.max, figures.sum, sum(figures.bucket)) == (3, 1.0, 4.0, 7.0, 3)
    said = capsys.readouterr().err
    assert said.count("no finite value") == 1
    assert "cannot write 'wrong' for TensorBoard: " in said


@pytest.mark.promise("S0-028")
def test_two_writers_of_one_second_have_their_own_files(tmp_path):
    """Writers in one folder overwrite nothing, even when they begin at the same moment."""
    writers = [SummaryWriter(tmp_path) for _ in range(3)]
    for number, writer in enumerate(writers):
        writer.add_scalar(f"x{number}", number, 0)
        writer.close()
    assert len(list(tmp_path.iterdir())) == 3
    assert sorted(accumulated(tmp_path).Tags()["scalars"]) == ["x0", "x1", "x2"]


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path, capsys):
    """A writer whose folder is a file refuses, says so once and never raises."""
    (tmp_path / "file").write_text("")
    writer = SummaryWriter(tmp_path / "file")
    for step in range(3):
        writer.add_scalar("x", 1.0, step)
        writer.flush()
    writer.close()
    assert writer.refused == 3
    assert capsys.readouterr().err.count("cannot write") == 1


def drained(rows):
    """Make a piece of a ring with rows of loss and a duration, and rows of pairs."""
    pieces = b""
    for number, (step, loss, ns) in enumerate(rows):
        body = struct.pack("<dq", loss, ns)
        pieces += RECORD.pack(RECORD.size + len(body), 16, number, 10**9 * number, step) + body
    pair = struct.pack("<qd", 0, 7.0)
    return [pieces + RECORD.pack(RECORD.size + len(pair), SCHEMA_PAIRS, 99, 0, 5) + pair]


def test_the_watcher_writes_rows_as_they_come(tmp_path):
    """Drained rows and samples are in the event file of the run; durations are seconds."""
    table = SchemaTable()
    table.schemas[16] = RowSchema(16, ("loss", "step_seconds"), "dq")
    table.names.append("extra")
    subject = Subject("run-1", "p", "node", tmp_path)
    settings = {"exporters.tensorboard.enabled": True, "exporters.tensorboard.dir": str(tmp_path / "tb")}
    feed = open_feed(settings, subject, pytest.fail)
    assert isinstance(feed, TensorBoardFeed)
    feed.rows(0, drained([(1, 0.5, 250_000_000), (2, 0.25, 125_000_000)]), table)
    feed.rows(1, drained([(1, 9.0, 1)]), table)
    feed.sample(-1, {"cpu/usage_ratio": 0.5})
    feed.serve()
    feed.end(1)
    feed.close()
    feed.close()
    run = tmp_path / "tb" / "run-1"
    assert values(run / "rank1", "loss") == [(1, 9.0)]
    [file] = run.glob("events*")
    (tmp_path / "alone").mkdir()
    file.rename(tmp_path / "alone" / file.name)
    assert values(tmp_path / "alone", "step_seconds") == [(1, 0.25), (2, 0.125)]
    assert values(tmp_path / "alone", "extra") == [(5, 7.0)]
    assert values(tmp_path / "alone", "cpu/usage_ratio") == [(0, 0.5)]


def test_a_watcher_without_the_setting_writes_nothing(tmp_path):
    """Nothing changes unless the configuration asks for event files."""
    assert open_feed({}, Subject("run-1", "p", "node", tmp_path), pytest.fail) is None


def test_a_full_disk_is_noted_and_the_watcher_goes_on(tmp_path):
    """What cannot be written is noted, never raised."""
    (tmp_path / "tb").write_text("")
    notes = []
    feed = TensorBoardFeed(tmp_path / "tb", notes.append)
    feed.sample(-1, {"x": 1.0})
    feed.close()
    assert "cannot write event files" in notes[0]
