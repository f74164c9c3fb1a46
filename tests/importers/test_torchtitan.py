from __future__ import annotations

import math

from stepscope.importers import formats
from tests.importers.foreign import titan


def test_scalars_and_spans_of_each_rank_are_one_run(tmp_path):
    """The files of a folder are the ranks of one run: scalars by name, spans in seconds, at their step and time."""
    for rank in (0, 1):
        rows = [titan("training_start", step=None, rank=rank)]
        for step in (1, 2):
            rows.append(titan("fwd_bwd_start", step=step, rank=rank, seq=step))
            rows.append(titan("fwd_bwd_end", 79.0, step=step, rank=rank, seq=step))
            rows.append(titan("metric_value", math.nan if rank else 0.5, "train.loss", step=step, rank=rank, seq=step))
            rows.append(titan("step_end", 250.0, step=step, rank=rank, seq=step))
        (tmp_path / f"training.global_rank_{rank}.20261118-060000-ABCDEF.jsonl").write_text("".join(rows))
    [run] = formats.read(str(tmp_path))
    assert run.format == "torchtitan"
    assert run.names() == ["fwd_bwd_seconds", "step_seconds", "train.loss"]
    assert run.series("fwd_bwd_seconds").value.tolist() == [0.079] * 4
    assert run.series("step_seconds").rank.tolist() == [0, 0, 1, 1]
    assert run.series("step_seconds").step.tolist() == [1, 2, 1, 2]
    assert run.series("train.loss").time.tolist() == [1700000001.0, 1700000002.0] * 2
    assert math.isnan(run.series("train.loss").value[3])
    assert run.facts["host"] == "node1"
    assert run.notes == ()


def test_a_second_file_of_a_rank_is_its_second_attempt(tmp_path):
    """A job that was restarted in the same folder has its steps again."""
    (tmp_path / "training.global_rank_0.b.jsonl").write_text(titan("metric_value", 2.0, "loss", seq=1))
    (tmp_path / "training.global_rank_0.a.jsonl").write_text(titan("metric_value", 1.0, "loss", seq=9))
    [run] = formats.read(str(tmp_path))
    assert run.series("loss").value.tolist() == [2.0, 1.0]
    assert run.series("loss").attempt.tolist() == [0, 1]


def test_a_cut_line_costs_itself(tmp_path):
    """The last line of a killed job is left out, with a note."""
    rows = titan("metric_value", 1.0, "loss") + titan("metric_value", 2.0, "loss")
    (tmp_path / "log").write_text(rows[:-20])
    [run] = formats.read(str(tmp_path / "log"))
    assert run.series("loss").value.tolist() == [1.0]
    assert run.notes == ("rows that are no JSON objects, left out",)
