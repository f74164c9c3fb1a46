"""Small Lightning trainings for tests."""

from __future__ import annotations

import time

import lightning
import torch

WIDTH = 8


class Model(lightning.LightningModule):
    """One layer; `nap` maps a phase to seconds that are slept there."""

    def __init__(self, nap=None):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, 1)
        self.nap = nap or {}
        if "backward" in self.nap:
            self.layer.weight.register_hook(lambda gradient: self.rest("backward"))

    def rest(self, phase):
        time.sleep(self.nap.get(phase, 0))

    def training_step(self, batch, index):
        self.rest("forward")
        loss = self.layer(batch[0] if isinstance(batch, (list, tuple)) else batch).square().mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.rest("evaluation")

    def on_save_checkpoint(self, checkpoint):
        self.rest("checkpoint")

    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.rest("transform")
        return batch

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: self.rest("optimizer"))
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


class Rows(torch.utils.data.Dataset):
    """So many rows, each after a nap."""

    def __init__(self, count, nap=0.0):
        self.rows, self.nap = torch.ones(count, WIDTH), nap

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        time.sleep(self.nap)
        return self.rows[index]


def loader(count=10, batch=4, nap=0.0, **options):
    return torch.utils.data.DataLoader(Rows(count, nap), batch_size=batch, **options)


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
