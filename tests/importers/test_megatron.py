from __future__ import annotations

import json
import math

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.importers.logs import megatron, megatron_golden
from tests.importers.foreign import MEGATRON, SAMPLES, shared


def read(tmp_path, text):
    path = tmp_path / "log"
    path.write_text(text)
    return megatron.FORMAT.read(str(path))


def test_the_documented_spike_is_read():
    """The lines of BLOOM's chronicle: 2.77 up to iteration 29040, 7.34 at 29050."""
    run = megatron.FORMAT.read(str(shared("bloom-incidents/tr1-13B_iteration_lines.log")))
    loss = dict(zip(run.series("loss").step.tolist(), run.series("loss").value.tolist(), strict=True))
    assert loss[29040] == 2.768131
    assert loss[29050] == 7.343709
    assert run.series("step_seconds").value[0] == pytest.approx(22.3066)
    assert run.facts["iterations"] == 311541


def test_a_field_that_a_line_lacks_is_absent():
    """While all iterations are skipped there is no loss: no point, and never 0."""
    run = megatron.FORMAT.read(str(shared("bloom-incidents/megatron_gpt2_n16_iteration_lines.log")))
    assert run.series("loss").step.tolist() == [20, 30, 40, 50, 60, 70, 80, 90]
    assert run.series("grad_norm").step[0] == 30
    assert run.series("loss").value[1] == 32.82511
    assert run.series("number of skipped iterations").value.tolist()[:3] == [10, 8, 1]


def test_an_iteration_that_comes_again_is_a_new_attempt(tmp_path):
    """After a restart from a checkpoint iterations repeat."""
    run = read(tmp_path, MEGATRON + MEGATRON.replace("      10/", "      20/") + "restart\n" + MEGATRON)
    assert run.series("loss").step.tolist() == [10, 20, 10]
    assert run.series("loss").attempt.tolist() == [0, 0, 1]


def test_validation_memory_and_nemo_lines_are_read(tmp_path):
    """Other lines of the same programs: validation, a rank's allocator, NeMo's spelling; a prefix does not matter."""
    run = read(
        tmp_path,
        "0: iteration 10/ 100 | lm loss: nan | elapsed time per iteration (s): 2.5/2.4 |\n"
        " validation loss at iteration 10 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 |\n"
        "[Rank 3] (after 10 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3\n"
        "Training epoch 0, iteration 11/99 | lr: 1e-05 | reduced_train_loss: 10.9 | train_step_timing in s: 6.25\n",
    )
    assert math.isnan(run.series("loss").value[0])
    assert run.series("step_seconds").value.tolist() == [2.5]
    assert run.series("validation/lm loss value").value.tolist() == [2.5]
    assert run.series("gpu/0/memory_peak_bytes").value.tolist() == [2 * 2**20]
    assert run.series("gpu/0/memory_peak_bytes").rank.tolist() == [3]
    assert run.series("learning_rate").value.tolist() == [1e-05]


def test_lines_without_an_iteration_are_an_error(tmp_path):
    """A log that has none says so."""
    with pytest.raises(StepscopeError, match="no line of an iteration"):
        read(tmp_path, "nothing\n")


def test_reference_values_are_read_as_they_are():
    """Loss, time and memory of each step; what was not recorded is absent."""
    path = shared("megatron-golden/mixtral__mixtral_8x7b_alltoall_tp2pp4ep4_release/golden_values_dev_dgx_h100.json")
    run = megatron_golden.FORMAT.read(str(path))
    values = json.loads(path.read_text())["lm loss"]["values"]
    known = {int(step): value for step, value in values.items() if value != "nan"}
    assert dict(zip(run.series("loss").step.tolist(), run.series("loss").value.tolist(), strict=True)) == known
    assert run.series("gpu/0/memory_peak_bytes").value[0] == 23340781568
    assert run.series("step_seconds").value[0] == 92.35132


def test_reference_values_of_either_form(tmp_path):
    """Values stand by step, or as a list from a first step at an interval; one "nan" among numbers is NaN."""
    path = tmp_path / "x"
    path.write_text(
        '{"a": {"start_step": 0, "step_interval": 5, "values": [1, "nan", 3, "nan"]}, "b": {"values": {"5": 9}}}'
    )
    run = megatron_golden.FORMAT.read(str(path))
    assert run.series("a").step.tolist() == [0, 5, 10]
    assert math.isnan(run.series("a").value[1])
    path.write_bytes(SAMPLES["megatron_golden"])
    assert megatron_golden.FORMAT.read(str(path)).series("loss").value.tolist() == [2.5, 2.25]
