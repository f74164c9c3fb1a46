from __future__ import annotations

import json
import statistics

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.importers.logs import mllog
from tests.importers.foreign import mllog as line
from tests.importers.foreign import shared


def read(tmp_path, text):
    path = tmp_path / "log"
    path.write_text(text)
    return mllog.FORMAT.read(str(path))


def test_tracked_values_are_read_at_their_step():
    """NVIDIA's pre-training run: loss and step time each 32 steps, evaluations by samples, run time by its edges."""
    run = mllog.FORMAT.read(str(shared("mlperf-v5.1-runs/nvidia_8gpu_llama31_8b/result_0.txt")))
    assert run.series("loss").step.tolist()[:2] == [31, 63]
    assert len(run.series("step_seconds")) == len(run.series("loss")) == 360
    assert statistics.median(run.series("step_seconds").value) == pytest.approx(0.345, rel=0.01)
    assert run.series("eval_accuracy").step.tolist()[-1] == 11520
    assert run.facts["run_seconds"] == pytest.approx(4132.693)
    assert run.facts["status"] == "success"
    assert run.facts["global_batch_size"] == 16


def test_step_time_of_a_log_that_tracks_none_is_that_of_its_blocks():
    """NVIDIA's fine-tuning run tells time by blocks: ours equals its own figure; learning rate is in the metadata."""
    run = mllog.FORMAT.read(str(shared("mlperf-v5.1-runs/nvidia_8gpu_llama2_70b_lora/result_0.txt")))
    assert run.series("step_seconds").value == pytest.approx(run.series("block/train_step_time").value, rel=1e-4)
    assert run.series("step_seconds").step.tolist() == [192, 240, 288, 336, 384]
    assert run.series("learning_rate").value[0] == 0.0005995107311778406


def test_steps_that_count_samples_are_divided_by_the_batch():
    """AMD's runs log samples as steps; throughput and step time then agree."""
    folder = shared("mlperf-v5.1-runs/amd_mi355x_llama31_8b")
    for path in sorted(folder.glob("result_*.txt")):
        run = mllog.FORMAT.read(str(path))
        assert run.series("step_seconds").step.tolist()[:2] == [384, 768]
        assert 32 / run.series("step_seconds").value == pytest.approx(run.series("samples_per_second").value, rel=1e-3)
        lines = [json.loads(each.partition("MLLOG ")[2]) for each in path.read_text().splitlines()]
        edges = {each["key"]: each["time_ms"] for each in lines if each["key"] in {"run_start", "run_stop"}}
        assert run.facts["run_seconds"] == pytest.approx((edges["run_stop"] - edges["run_start"]) / 1000)


def test_lines_among_others_and_broken_ones(tmp_path):
    """What other programs print between is passed over; a cut line is counted."""
    log = (
        "noise\n[0]: "
        + line(5000, "eval_accuracy", 0.5, 10)
        + ':::MLLOG {"key": "cut\n:::MLLOG []\n:::MLLOG {"time_ms": "x"}\n'
    )
    run = read(tmp_path, log)
    assert run.series("eval_accuracy").time.tolist() == [5.0]
    assert run.notes == ("lines of MLLOG that are cut or too many, left out (3 times)",)


def test_a_log_without_a_whole_line_is_an_error(tmp_path):
    """Nothing to read is said."""
    with pytest.raises(StepscopeError, match="no line of MLLOG"):
        read(tmp_path, ":::MLLOG {")


@pytest.mark.parametrize(("figure", "name"), [(8.1, "samples_per_second"), (8192.0, "throughput")])
def test_throughput_is_one_of_samples_only_where_it_agrees(figure, name, tmp_path):
    """Some programs track tokens a second: then the blocks tell the samples."""
    run = read(
        tmp_path,
        line(0, "global_batch_size", 4)
        + line(1000, "block_start", None, 0)
        + line(6000, "tracked_stats", {"throughput": figure}, 10, 40)
        + line(6000, "block_stop", None, 10, 40),
    )
    assert run.series(name).value.tolist() == [figure]
    assert run.series("samples_per_second").value.tolist() == pytest.approx([8.0], rel=0.02)
    assert run.series("step_seconds").value.tolist() == [0.5]
