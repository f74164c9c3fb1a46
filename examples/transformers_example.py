"""A Transformers Trainer, watched: a tiny Llama with random weights learns the alphabet. Runs on a CPU in seconds.

    python examples/transformers_example.py [OUTPUT_DIR]

Needs `pip install 'stepscope[transformers]' accelerate`. Nothing is downloaded.
"""

from __future__ import annotations

import sys
import tempfile

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
except ImportError as error:
    sys.exit(f"cannot run this example: {error}; pip install 'stepscope[transformers]' accelerate")

import stepscope
from stepscope.callbacks import GPUMonitoringCallback
from stepscope.monitor import GPUMonitor

LETTERS = 26
LENGTH = 64


def sentences(count):
    """Return pieces of the alphabet, each with some padding at its end."""
    random = torch.Generator().manual_seed(0)
    rows = []
    for start in torch.randint(0, LETTERS, (count,), generator=random).tolist():
        tokens = (torch.arange(LENGTH) + start) % LETTERS
        mask = torch.ones(LENGTH, dtype=torch.long)
        mask[LENGTH - start % 16 :] = 0
        labels = torch.where(mask.bool(), tokens, -100)
        rows.append({"input_ids": tokens, "attention_mask": mask, "labels": labels})
    return rows


def tiny_llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=LETTERS, num_attention_heads=4, num_key_value_heads=2, **sizes))


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="stepscope-example-")
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=20,
        learning_rate=3e-3,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=10,
        save_steps=10,
        report_to="none",  # or, after stepscope.callbacks.register(): report_to=["stepscope"] without the callback
        disable_tqdm=True,
    )
    callback = GPUMonitoringCallback(GPUMonitor(gpu_index=0, log_dir=None), log_interval=10, project="examples")
    trainer = Trainer(
        model=tiny_llama(),
        args=arguments,
        train_dataset=sentences(300),
        eval_dataset=sentences(32),
        callbacks=[callback],
    )
    trainer.train()

    past = stepscope.open(stepscope.runs()[0].path)
    loss, tokens = past.series("loss").value, past.series("tokens").value
    print(f"{past.state}: {len(loss)} steps, {tokens.sum():.0f} tokens, loss {loss[0]:.2f} -> {loss[-1]:.2f}")
    print(f"look at it: stepscope show {past.path}")


if __name__ == "__main__":
    main()
