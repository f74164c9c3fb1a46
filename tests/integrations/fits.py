"""Small Lightning trainings for tests."""

from __future__ import annotations

import time

import lightning
import torch

WIDTH = 8


def work(seconds):
    """Keep the processor busy for so many seconds."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Model(lightning.LightningModule):
    """One layer; `extra` maps a phase to the seconds of work that are added to it."""

    def __init__(self, extra=None):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 1)
        self.extra = extra or {}
        if "backward" in self.extra:
            self.layer.weight.register_hook(lambda gradient: self.spend("backward"))

    def spend(self, phase):
        work(self.extra.get(phase, 0.0))

    def training_step(self, batch, index):
        self.spend("forward")
        loss = self.layer(batch[0] if isinstance(batch, (list, tuple)) else batch).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.spend("evaluation")

    def on_save_checkpoint(self, checkpoint):
        self.spend("checkpoint")

    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.spend("transform")
        return batch

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: self.spend("optimizer"))
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


class Rows(torch.utils.data.Dataset):
    """So many rows, each after some seconds of work."""

    def __init__(self, count, seconds=0.0):
        self.rows, self.seconds = torch.ones(count, WIDTH), seconds

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        work(self.seconds)
        return self.rows[index]


def loader(count=10, batch=4, seconds=0.0, **options):
    return torch.utils.data.DataLoader(Rows(count, seconds), batch_size=batch, **options)


def trainer(folder, callbacks=(), **options):
    """A quiet trainer on the CPU."""
    given = {"max_epochs": 2, "logger": False, "enable_checkpointing": False, **options}
    return lightning.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **given,
    )
