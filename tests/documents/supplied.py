"""What the documents' loops assume: a model, data, an optimizer and some numbers, small and on the processor."""

from __future__ import annotations

import torch


class MyModel(torch.nn.Module):
    """A model of eight weights."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, inputs):
        return self.layer(inputs)


class Batch(list):
    """Samples that know their tokens."""

    total_tokens = 64


def names():
    """Return what a block may take for given, made anew for each."""
    model = MyModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs = torch.randn(8, 4)
    loss = model(inputs).pow(2).mean()

    def train_step():
        return 0.5

    def training_step(batch):
        return torch.tensor(0.25), 0.5, [1.0, None, 0.5]

    return {
        "torch": torch,
        "MyModel": MyModel,
        "model": model,
        "optimizer": optimizer,
        "criterion": torch.nn.CrossEntropyLoss(),
        "train_loader": [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(3)],
        "dataloader": [Batch([1, 2, 3]) for _ in range(3)],
        "input": inputs,
        "device": torch.device("cpu"),
        "loss": loss,
        "reward": 0.5,
        "accuracy": 0.5,
        "lr": 1e-3,
        "grad_norm": 1.0,
        "epoch": 0,
        "num_steps": 3,
        "num_epochs": 2,
        "batch_size": 8,
        "total_tokens": 64,
        "samples_per_sec": 100.0,
        "tokens_processed": 640,
        "batch_time": 0.1,
        "effective_batch_size": 8,
        "peak_memory_mb": 100.0,
        "threshold": 5.0,
        "target_loss": 1.0,
        "train_step": train_step,
        "training_step": training_step,
    }
