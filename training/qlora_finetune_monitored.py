"""Fine-tune a language model with LoRA, monitored: steps, phases, GPU, files, Prometheus, and a report at the end.

    python training/qlora_finetune_monitored.py --model-config tiny --output-dir ./results

The weights are quantised to 4 bits where there is a GPU and bitsandbytes (QLoRA), else they stay as they are (LoRA).
Also importable for `GPUMonitoringCallback`. Needs `pip install 'stepscope[transformers]' accelerate peft`.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
        LlamaConfig,
        LlamaForCausalLM,
        Trainer,
        TrainingArguments,
    )
except ImportError as problem:
    sys.exit(f"cannot train: {problem}; pip install 'stepscope[transformers]' accelerate peft")

import stepscope
from stepscope.callbacks import GPUMonitoringCallback
from stepscope.monitor import GPUMonitor, TrainingMonitorCallback

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["GPUMonitoringCallback", "main"]

TINY = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
SENTENCES = ("the quick brown fox jumps over the lazy dog", "every step is recorded", "what is absent is not zero")
LENGTH = 64
REPORT = "training_report.json"


class FilesOnly:
    """A run that keeps nothing: the steps are in the real one already, TrainingMonitorCallback is to write its file."""

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Keep nothing."""


class Bytes:
    """A tokenizer for models without one: a token is a byte."""

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(text.encode())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Fine-tune a language model with LoRA, monitored.", allow_abbrev=False)
    parser.add_argument("--model-config", default="tiny", metavar="M",
                        help="tiny (random weights, no download), a JSON file of a configuration (random weights), or "
                        "a model's folder or name for from_pretrained (default: tiny)")  # fmt: skip
    parser.add_argument("--data", type=Path, metavar="FILE",
                        help="text, one example a line, or .jsonl with `text`; else a sample is made")  # fmt: skip
    parser.add_argument("--output-dir", type=Path, default=Path("results"), metavar="D", help="checkpoints and report")
    parser.add_argument("--gpu-index", type=int, default=0, metavar="N", help="GPU to sample (default: 0)")
    parser.add_argument(
        "--monitoring-log-dir", type=Path, default=Path("gpu_logs"), metavar="D", help="JSON-lines files"
    )
    parser.add_argument("--enable-prometheus", action="store_true", help="serve metrics while it trains")
    parser.add_argument(
        "--prometheus-port", type=int, default=9090, metavar="P", help="first port to try (default: 9090)"
    )
    parser.add_argument("--max-steps", type=int, default=20, metavar="N", help="steps of the optimizer (default: 20)")
    parser.add_argument("--batch-size", type=int, default=4, metavar="N", help="examples a batch (default: 4)")
    return parser.parse_args(arguments)


def read_texts(path: Path) -> list[str]:
    """Return the examples of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".jsonl":
        return [str(json.loads(line)["text"]) for line in lines if line.strip()]
    return [line for line in lines if line.strip()]


def make_sample(folder: Path) -> Path:
    """Write a small file of examples and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sample_data.jsonl"
    rows = [{"text": f"{SENTENCES[number % len(SENTENCES)]} ({number})"} for number in range(96)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def load_model(name: str) -> tuple[Any, Any, bool]:
    """Return the model, what turns a text into tokens, and whether the weights are quantised."""
    if name == "tiny":
        return LlamaForCausalLM(LlamaConfig(**TINY, **HEADS)), Bytes(), False
    if name.endswith(".json"):
        values = json.loads(Path(name).read_text(encoding="utf-8"))
        config = AutoConfig.for_model(values.pop("model_type", "llama"), **values)
        return AutoModelForCausalLM.from_config(config), Bytes(), False
    tokenizer = AutoTokenizer.from_pretrained(name)
    quantised = torch.cuda.is_available() and find_spec("bitsandbytes") is not None
    if not quantised:
        return AutoModelForCausalLM.from_pretrained(name), lambda text: tokenizer(text)["input_ids"], False
    from peft import prepare_model_for_kbit_training
    from transformers import BitsAndBytesConfig

    scheme = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(name, quantization_config=scheme, device_map="auto")
    return prepare_model_for_kbit_training(model), lambda text: tokenizer(text)["input_ids"], True


def collate(rows: list[list[int]]) -> dict[str, Any]:
    """Return a batch, padded at the end; padding is in no loss and counts as no token."""
    length = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def report(past: Any, callback: GPUMonitoringCallback, trained: dict[str, Any]) -> dict[str, Any]:
    """Return what the training did, took and cost: figures of the run, and of the GPU."""
    total = past.summary("step_seconds")["mean"] * len(past.series("step_seconds").value)
    phases = {name: float(past.series(name).value.sum()) / total for name in past.names() if name.startswith("phase/")}
    shown = ("loss", "learning_rate", "grad_norm", "step_seconds", "samples_per_second", "tokens_per_second")
    return {
        "run": str(past.path),
        "state": past.state,
        "steps": len(past.series("step_seconds").value),
        "samples": float(past.series("samples").value.sum()),
        "tokens": float(past.series("tokens").value.sum()),
        **trained,
        "metrics": {name: past.summary(name) for name in shown if name in past.names()},
        "phase_shares": dict(sorted(phases.items(), key=lambda item: -item[1])),
        "gpu": callback.gpu_monitor.get_summary() if callback.gpu_monitor is not None else {},
    }


def print_report(facts: dict[str, Any]) -> None:
    """Print the report for people."""
    loss, step = facts["metrics"]["loss"], facts["metrics"]["step_seconds"]
    print("\n=== Training report ===")
    print(f"run:        {facts['run']} ({facts['state']})")
    print(
        f"work:       {facts['steps']} steps, {facts['samples']:.0f} samples, {facts['tokens']:.0f} tokens (no padding)"
    )
    print(f"weights:    {'4 bits (QLoRA)' if facts['quantised'] else 'not quantised (LoRA)'}, "
          f"{facts['trainable']:,} of {facts['parameters']:,} parameters trained")  # fmt: skip
    print(f"loss:       last {loss['last']:.4f}, least {loss['min']:.4f}, largest {loss['max']:.4f}")
    print(f"step:       median {step['p50'] * 1e3:.1f} ms, mean {step['mean'] * 1e3:.1f} ms")
    for name, share in facts["phase_shares"].items():
        print(f"            {name.removeprefix('phase/'):<12} {share:6.1%}")
    gpu = facts["gpu"]
    if gpu.get("available"):
        used, heat = gpu.get("utilization_percent", {}), gpu.get("temperature_celsius", {})
        print(
            f"GPU {gpu['gpu_index']}:      use {used.get('mean', 0):.0f} % (mean), {heat.get('max', 0):.0f} °C (most)"
        )
    else:
        print(f"GPU {gpu.get('gpu_index')}:      not sampled: {gpu.get('reason')}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit code."""
    options = parse(arguments)
    if options.data is not None and not options.data.is_file():
        print(f"cannot train: there is no file {options.data}; name one, or leave --data out", file=sys.stderr)
        return 2
    texts = read_texts(options.data or make_sample(options.output_dir))
    settings = {"exporters.prometheus.enabled": True, "exporters.prometheus.port": options.prometheus_port}
    run = stepscope.init(
        project="qlora", config=vars(options), **(settings if options.enable_prometheus else {})
    )  # fmt: skip
    torch.manual_seed(0)
    model, tokens_of, quantised = load_model(options.model_config)
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    trainable, parameters = model.get_nb_trainable_parameters()

    monitor = GPUMonitor(gpu_index=options.gpu_index, log_dir=str(options.monitoring_log_dir))
    callback = GPUMonitoringCallback(monitor, steps=TrainingMonitorCallback(monitor, run=FilesOnly()))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(options.output_dir),
            per_device_train_batch_size=options.batch_size,
            gradient_accumulation_steps=2,
            max_steps=options.max_steps,
            learning_rate=2e-3,
            logging_steps=5,
            save_steps=options.max_steps,
            bf16=quantised,
            report_to="none",
            remove_unused_columns=False,
        ),
        train_dataset=[row[:LENGTH] for row in map(tokens_of, texts)],
        data_collator=collate,
        callbacks=[callback],
    )
    trainer.train()
    run.finish()

    facts = report(
        stepscope.open(run.path),
        callback,
        {"quantised": quantised, "trainable": trainable, "parameters": parameters},
    )
    (options.output_dir / REPORT).write_text(json.dumps(facts, indent=2, default=str), encoding="utf-8")
    print_report(facts)
    print(f"report: {options.output_dir / REPORT}; look: stepscope show {run.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
