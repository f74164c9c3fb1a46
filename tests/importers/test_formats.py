from __future__ import annotations

import gzip
import math
import os

import numpy as np
import pytest

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.importers import formats
from tests.importers.foreign import SAMPLES, event, event_file, scalar, shared
from tests.importers.tracker_files import FOLDERS, PACKED, folder


@pytest.mark.parametrize("name", FOLDERS)
def test_every_folder_is_told_by_what_is_in_it(name, tmp_path):
    """A folder that is one thing is read as one run, also below another folder."""
    place = folder(FOLDERS[name], tmp_path / "some" / "run")
    for path in (place, tmp_path):
        (run,) = formats.read(str(path))
        assert (run.format, run.path) == (name, str(place))


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_told_by_content_alone(name, tmp_path):
    """A file without a name that means anything is read as what it is."""
    path = tmp_path / "a"
    path.write_bytes(SAMPLES[name])
    found = formats.detect(str(path))
    assert found is not None
    assert found.name == name
    (run,) = formats.read(str(path))
    assert run.format == name
    assert run.path == str(path)
    assert all(len(run.series(each)) for each in run.names())


@pytest.mark.parametrize("name", sorted({*SAMPLES} - {*PACKED}))
def test_packed_files_say_the_same(name, tmp_path):
    """A gzip file is read as what it holds."""
    (tmp_path / "plain").write_bytes(SAMPLES[name])
    (tmp_path / "packed").write_bytes(gzip.compress(SAMPLES[name]))
    (plain,), (packed,) = (formats.read(str(tmp_path / each)) for each in ("plain", "packed"))
    assert plain.names() == packed.names()
    for each in plain.names():
        assert np.array_equal(plain.series(each).value, packed.series(each).value, equal_nan=True)


@pytest.mark.parametrize("content", [b"", b"\n", b"hello\n", b"{}", b"[]", b"\x00" * 100, b"a,b\n1,2\n", b'{"a": 1}x'])
def test_what_is_no_run_is_refused_with_the_formats_that_are(content, tmp_path):
    """An unknown file is an error that names the formats."""
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(
        StepscopeError, match=r"no format that Stepscope reads; it reads stepscope, training_logger, tfevents"
    ):
        formats.read(str(tmp_path / "x"))


def test_missing_and_special_files_are_refused(tmp_path):
    """A path that is not there, or is no regular file, is an error and never waits."""
    with pytest.raises(StepscopeError, match="No such file"):
        formats.read(str(tmp_path / "none"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StepscopeError, match="not a regular file"):
        formats.read(str(tmp_path / "pipe"))
    with pytest.raises(StepscopeError, match="no file in it"):
        formats.read(str(tmp_path))


def test_a_format_can_be_forced(tmp_path):
    """Where content does not tell the format, its name does; an unknown name is the user's mistake."""
    (tmp_path / "x").write_bytes(SAMPLES["step_log"])
    assert formats.read(str(tmp_path / "x"), "step_log")[0].format == "step_log"
    with pytest.raises(StepscopeError, match="no line of MLLOG"):
        formats.read(str(tmp_path / "x"), "mllog")
    with pytest.raises(UsageError, match="take one of stepscope"):
        formats.read(str(tmp_path / "x"), "excel")


def test_a_folder_gives_a_run_a_file_in_order_of_path(tmp_path):
    """Every file of a known format is a run; others are passed over, and a broken one is a note."""
    for name in ("b", "a", "sub/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(SAMPLES["step_log"])
    (tmp_path / "README").write_text("nothing")
    (tmp_path / "z.json").write_bytes(SAMPLES["trainer_state"][:-1])
    runs = formats.read(str(tmp_path))
    assert [os.path.relpath(run.path, tmp_path) for run in runs] == ["a", "b", "sub/c"]
    assert "z.json" in runs[0].notes[-1]
    (tmp_path / "csv").write_bytes(SAMPLES["csv"])
    assert [run.format for run in formats.read(str(tmp_path), "csv")] == ["csv"]


def test_event_files_of_a_folder_are_one_run_with_attempts(tmp_path):
    """As TensorBoard has it; a second file with the same tag is its second attempt."""
    (tmp_path / "events.1").write_bytes(
        event_file(event(1, 10.0, scalar("loss", 0.5)), event(2, 11.0, scalar("loss", 0.25)))
    )
    (tmp_path / "events.2").write_bytes(
        event_file(event(2, 20.0, scalar("loss", 0.125)), event(2, 20.0, scalar("val", 1.0)))
    )
    (tmp_path / "metrics.csv").write_bytes(SAMPLES["csv"])
    (run,) = formats.read(str(tmp_path))
    loss = run.series("loss")
    assert loss.step.tolist() == [1, 2, 2]
    assert loss.attempt.tolist() == [0, 0, 1]
    assert run.series("val").attempt.tolist() == [0]


def test_checkpoints_of_a_run_are_not_repeats_of_it(tmp_path):
    """Of the states in a run's checkpoints the furthest counts."""
    for step in (500, 1000):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(
            f'{{"global_step": {step}, "log_history": [{{"step": 1, "loss": 2}}]}}'
        )
    (run,) = formats.read(str(tmp_path))
    assert run.facts["global_step"] == 1000


def test_folders_beside_a_wandb_file_repeat_it(tmp_path):
    """What W&B keeps beside its run file is not another run."""
    (tmp_path / "run-x.wandb").write_bytes(SAMPLES["wandb"])
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "output.log").write_bytes(SAMPLES["step_log"])
    assert [run.format for run in formats.read(str(tmp_path))] == ["wandb"]


def test_names_are_canonical_where_they_are_certain(tmp_path):
    """One quantity has one name, and the source's own is kept beside it."""
    (tmp_path / "x").write_bytes(SAMPLES["megatron"])
    (run,) = formats.read(str(tmp_path / "x"))
    assert {"loss", "learning_rate", "grad_norm", "step_seconds", "batch_size"} <= set(run.names())
    assert run.facts["names"]["loss"] == "lm loss"
    assert run.series("step_seconds").value.tolist() == pytest.approx([5.8379])
    assert run.series("loss").time.tolist() == [1730800800.5]
    assert len(run.series("absent")) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "counts"),
    [
        ("modded-nanogpt-runs", {"step_log": 35}),
        ("mlperf-v5.1-runs", {"mllog": 16}),
        ("megatron-golden", {"megatron_golden": 4}),
        ("bloom-incidents", {"megatron": 2}),
        ("wandb-tb-samples", {"tfevents": 1, "wandb": 1}),
        ("hf-trainer-state", {"trainer_state": 1}),
        ("gpu-telemetry-nvidia-smi", {"nvidia_smi": 1}),
        ("grpo-rookworld", {"console_log": 2}),
    ],
)
def test_real_folders_are_read_whole(folder, counts):
    """Every run of the real data is found, and nothing else is taken for one."""
    runs = formats.read(str(shared(folder)))
    found = [run.format for run in runs]
    assert {name: found.count(name) for name in found} == counts
    assert all(math.isfinite(run.series(run.names()[0]).value[-1]) for run in runs)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["hta-traces", "peft-memory-metamathqa", "tcpd-subset", "nvrx-flight-recorder"])
def test_traces_and_results_are_no_runs(folder):
    """Traces, result tables and dumps are not taken for logs of training."""
    with pytest.raises(StepscopeError, match="no file in it"):
        formats.read(str(shared(folder)))


def test_a_metric_is_found_by_any_of_its_spellings(tmp_path):
    """By our name, by a documented alias and by what the source calls it."""
    (tmp_path / "x").write_bytes(SAMPLES["megatron"])
    (run,) = formats.read(str(tmp_path / "x"))
    assert all(len(run.series(name)) == 1 for name in ("learning_rate", "lr", "learning rate"))
