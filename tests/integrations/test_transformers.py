from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import stepscope
from stepscope.callbacks import GPUMonitoringCallback, register
from tests.integrations.programs import ROOT, kinds, last_run, other_share, run_program

# What Transformers says of its own dependencies is not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.processes,
    pytest.mark.training,
]
LENGTH, PADDING = 8, 2


def model():
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1))


def rows(count):
    mask = torch.ones(LENGTH, dtype=torch.long)
    mask[LENGTH - PADDING :] = 0
    tokens = torch.arange(LENGTH)
    return [{"input_ids": tokens, "attention_mask": mask, "labels": tokens} for _ in range(count)]


def trainer(folder, callbacks=(), count=23, **options):
    given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 1, **options}
    arguments = TrainingArguments(
        output_dir=str(folder),
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=True,
        **{"report_to": "none", "save_strategy": "no", **given},
    )
    return Trainer(
        model=model(), args=arguments, train_dataset=rows(count), eval_dataset=rows(4), callbacks=list(callbacks)
    )


class Monitor:
    """Stands in for a GPUMonitor."""

    gpu_index = 0

    def __init__(self):
        self.is_monitoring = False
        self.calls = []

    def start_monitoring(self):
        self.is_monitoring = True
        self.calls.append("start")

    def stop_monitoring(self):
        self.is_monitoring = False
        self.calls.append("stop")

    def get_current_metrics(self):
        return {
            "utilization_percent": 95.0,
            "memory_used_mb": 22528.0,
            "memory_total_mb": 24576.0,
            "temperature_celsius": 75.0,
        }


@pytest.mark.promise("S2-020", "X-06")
def test_trainer_is_recorded_with_its_gpu(tmp_path, capsys):
    """Steps, phases, samples and tokens are right with accumulation, padding and a short last batch."""
    monitor = Monitor()
    trainer(tmp_path, [GPUMonitoringCallback(monitor, log_interval=2)]).train()
    past = last_run()
    assert past.state == "finished"
    assert past.series("samples").value.tolist() == [8, 8, 7]
    assert past.series("samples").step.tolist() == [1, 2, 3]
    assert past.series("tokens").value.tolist() == [count * (LENGTH - PADDING) for count in (8, 8, 7)]
    for phase in ("data", "forward", "backward", "optimizer", "other"):
        assert len(past.series(f"phase/{phase}").value) == 3, phase
    assert past.series("loss").step.tolist() == [1, 2, 3]
    assert monitor.calls == ["start", "stop"]
    printed = capsys.readouterr().out
    assert re.findall(r"GPUMonitoring: Step (\d+) - loss: ", printed) == ["2"]  # every second step
    assert "GPU util: 95%, GPU mem: 22.0/24.0GB, GPU temp: 75°C" in printed


def test_loss_of_a_step_is_the_trainers(tmp_path):
    """The loss of every step, over all its batches, is what the Trainer itself reports of it."""
    trainer(tmp_path, [GPUMonitoringCallback()]).train()
    past = last_run()
    assert past.series("loss").value.tolist() == pytest.approx(past.series("trainer/loss").value.tolist(), rel=1e-4)


def test_evaluation_and_checkpoints_are_phases(tmp_path):
    """They belong to the step that they delay."""
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 2}
    trainer(tmp_path, [GPUMonitoringCallback()], **options).train()
    past = last_run()
    assert past.series("phase/evaluation").step.tolist() == [2, 3]
    assert past.series("phase/checkpoint").step.tolist() == [3]
    assert kinds(past).count("evaluation") == 3
    assert (tmp_path / "checkpoint-2").is_dir()
    assert len(past.series("eval_loss").value) == 3


def test_resumed_training_goes_on_at_its_step(tmp_path):
    """After a resume only what was trained on now is counted, under the Trainer's own step."""
    options = {"save_strategy": "steps", "save_steps": 1}
    trainer(tmp_path, **options).train()
    trainer(tmp_path, [GPUMonitoringCallback()], **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    past = last_run()
    assert past.series("samples").step.tolist() == [2, 3]
    assert past.series("samples").value.tolist() == [8, 7]


@pytest.mark.promise("S2-020")
def test_callback_is_known_by_name(tmp_path, monkeypatch, capsys):
    """After `register`, `report_to=["stepscope"]` records; given twice, it records once and says so."""
    from transformers.integrations import integration_utils

    monkeypatch.setattr(integration_utils, "INTEGRATION_TO_CALLBACK", dict(integration_utils.INTEGRATION_TO_CALLBACK))
    register()
    trainer(tmp_path, [GPUMonitoringCallback()], report_to=["stepscope"]).train()
    assert len(stepscope.runs()) == 1
    assert last_run().series("samples").value.tolist() == [8, 8, 7]
    assert "has this callback twice" in capsys.readouterr().err


def test_run_of_the_user_stays_open(tmp_path):
    """A run that the program began is used, and not ended with the training."""
    with stepscope.init(project="own") as run:
        trainer(tmp_path, [GPUMonitoringCallback()]).train()
        assert run.recording
    assert len(stepscope.runs()) == 1


def test_callback_that_fails_does_not_stop_the_training(tmp_path, monkeypatch, capsys):
    """Whatever raises inside the callback is told once, and training goes on."""

    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr("stepscope.integrations.huggingface.transformers.TrainerRecording.step_ended", broken)
    monkeypatch.setattr("stepscope.integrations.huggingface.transformers.TrainerRecording.before_optimizer", broken)
    fitted = trainer(tmp_path, [GPUMonitoringCallback(Monitor())])
    fitted.train()
    assert fitted.state.global_step == 3
    told = capsys.readouterr().err
    assert told.count("cannot go on in GPUMonitoringCallback.on_step_end: RuntimeError: broken") == 1


def test_compiled_model_gets_no_hooks():
    """A hook would break its graph: forward and backward are one phase there."""
    callback = GPUMonitoringCallback()
    linear = torch.nn.Linear(2, 2)
    arguments = SimpleNamespace(torch_compile=True, n_gpu=1, to_dict=dict)
    state = SimpleNamespace()
    callback.on_train_begin(arguments, state, None, model=linear)
    callback.on_step_begin(arguments, state, None)
    assert callback.recording.phases.name == "compute"
    assert not linear._forward_hooks
    assert not linear._forward_pre_hooks
    callback.on_train_end(arguments, state, None)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_example_runs(tmp_path):
    """The example trains on a CPU, and nearly all of its time is told."""
    printed = run_program("examples/transformers_example.py", str(tmp_path / "out"), folder=tmp_path)
    assert "finished: 20 steps" in printed
    assert other_share(last_run()) <= 0.05


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.promise("S2-013", "S2-014")
def test_monitored_fine_tune_runs_with_the_documents_flags(tmp_path):
    """LoRA on a CPU with every flag: files, a run, and a report of what the training did and cost."""
    pytest.importorskip("peft")
    data = tmp_path / "data.txt"
    data.write_text("one example\nanother one that is longer\n" * 20)
    printed = run_program(
        "training/qlora_finetune_monitored.py",
        *("--model-config", "tiny", "--data", str(data), "--output-dir", "results", "--gpu-index", "0"),
        *("--monitoring-log-dir", "logs", "--enable-prometheus", "--prometheus-port", "0", "--max-steps", "6"),
        folder=tmp_path,
    )
    assert "=== Training report ===" in printed
    assert "not quantised (LoRA)" in printed
    report = json.loads((tmp_path / "results" / "training_report.json").read_text())
    assert (report["state"], report["steps"], report["samples"]) == ("finished", 6, 48)
    assert 0 < report["trainable"] < report["parameters"]
    assert sum(report["phase_shares"].values()) == pytest.approx(1, rel=1e-3)
    [steps] = (tmp_path / "logs").glob("training_metrics_*.jsonl")
    lines = [json.loads(line) for line in steps.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[0]["loss"] > 0
    assert stepscope.open(report["run"]).series("loss").value.tolist() == pytest.approx(
        [line["loss"] for line in lines]
    )


@pytest.mark.promise("S2-020")
def test_fine_tune_gives_the_documents_callback(monkeypatch):
    """`from training.qlora_finetune_monitored import GPUMonitoringCallback` gives ours."""
    pytest.importorskip("peft")
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delitem(sys.modules, "training", raising=False)
    from training.qlora_finetune_monitored import GPUMonitoringCallback as Documented
    from training.qlora_finetune_monitored import main

    assert Documented is GPUMonitoringCallback
    assert main(["--data", "/nowhere/data.txt"]) == 2
