"""The documents' tuning keys, each with the effect that can be seen on a real run."""

from __future__ import annotations

import json

import pytest

import stepscope
from stepscope.core.places import find_places
from stepscope.session.opening import _watcher_settings
from stepscope.store.catalog import runs
from tests.integration.processes import until

pytestmark = pytest.mark.processes


@pytest.fixture
def start(tmp_path):
    """Start runs from a configuration file of the documents, and end them."""
    started = []

    def begin(text, **settings):
        file = tmp_path / "monitoring_config.yaml"
        file.write_text(text)
        run = stepscope.init(project="tuning", config_file=file, **settings)
        started.append(run)
        return run

    yield begin
    for run in started:
        run.finish()


def ring_bytes(run):
    return run._mapping.path.stat().st_size


def watcher_settings(text, tmp_path):
    from stepscope.core.config import load

    file = tmp_path / "c.yaml"
    file.write_text(text)
    return json.loads(_watcher_settings(load([file])))


@pytest.mark.promise("S1-057", "S1-061", "S1-077")
def test_a_smaller_buffer_takes_less_memory(start):
    """`buffer_size` rows decide how much shared memory a rank takes."""
    small = start("metrics_collection:\n  buffer_size: 500\n")
    assert ring_bytes(small) == 256 << 10 < ring_bytes(start(""))


@pytest.mark.promise("S1-057", "S1-061")
def test_high_frequency_mode_gives_room_and_drains_more_often(start, tmp_path):
    """`high_frequency_mode` doubles the ring and halves the time between two drains."""
    text = "performance_tuning:\n  high_frequency_mode: true\n"
    assert ring_bytes(start(text)) == 8 << 20
    assert watcher_settings(text, tmp_path)["watcher.drain_interval"] == 0.05


@pytest.mark.promise("S1-060")
def test_the_flush_interval_is_that_of_the_sync_to_disk(tmp_path):
    """`flush_interval` reaches the watcher; of two sections that set it, metrics_collection wins."""
    text = "performance_tuning:\n  flush_interval: 10.0\nmetrics_collection:\n  flush_interval: 5.0\n"
    assert watcher_settings(text, tmp_path)["watcher.sync_interval"] == 5.0


def test_batches_are_smaller_when_they_are_not_wanted(tmp_path):
    """`batch_metrics_collection: false` makes the watcher drain more often."""
    on, off = (f"performance_tuning:\n  batch_metrics_collection: {word}\n" for word in ("true", "false"))
    key = "watcher.drain_interval"
    assert watcher_settings(off, tmp_path)[key] < watcher_settings(on, tmp_path)[key]


@pytest.mark.promise("S1-058", "S1-061")
def test_events_beyond_the_limit_are_dropped_and_counted(start, capsys):
    """`max_events_per_second` keeps a flood of text out of the run, and says so once."""
    run = start("performance_tuning:\n  max_events_per_second: 3\n")
    for _ in range(50):
        run.log({"note": "text"})
    run.finish()
    assert 3 <= len(stepscope.open(run.path).events("log")) < 50
    assert capsys.readouterr().err.count("too many a second") == 1


@pytest.mark.promise("S1-059", "S1-061")
def test_without_memory_maps_the_ring_lies_on_disk(start):
    """`use_memory_maps: false` keeps our rings out of shared memory."""
    run = start("performance_tuning:\n  use_memory_maps: false\n")
    assert find_places().disk in run._mapping.path.parents


@pytest.mark.promise("S0-074", "S1-024")
def test_monitoring_can_be_switched_off_and_told_where_to_write(start, tmp_path, monkeypatch):
    """`monitoring.enabled: false` records nothing; `save_dir` is where runs go unless the environment says else."""
    monkeypatch.delenv("STEPSCOPE_DIR")
    assert not start("monitoring:\n  enabled: false\n  interval: 30\n").recording
    kept = start(f"save_dir: {tmp_path / 'kept'}\n")
    assert [info.id for info in runs(tmp_path / "kept")] == [kept.id]


@pytest.mark.promise("S1-062")
def test_a_loop_of_thousands_of_steps_a_second_loses_nothing(start):
    """Steps as fast as Python can make them are all recorded."""
    run = start("")
    for number in range(3000):
        with run.step(samples=1):
            run.log({"value": number})
    run.finish()
    until(lambda: stepscope.open(run.path).state != "running", "the end")  # a busy machine's watcher may be late
    past = stepscope.open(run.path)
    assert past.series("value").value.tolist() == list(range(3000)) == past.series("step_seconds").step.tolist()
