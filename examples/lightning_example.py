"""Lightning with the three monitoring callbacks, chosen and set by Hydra. Runs on a CPU in seconds.

    python examples/lightning_example.py callbacks=throughput_monitor,profiler,resource_monitor \
        callbacks.profiler.enabled=true callbacks.profiler.profile_epochs=[1] callbacks.resource_monitor.log_interval=5

Needs `pip install 'stepscope[lightning]' hydra-core`.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import hydra
    import lightning
    import torch
except ImportError as error:
    sys.exit(f"cannot run this example: {error}; pip install 'stepscope[lightning]' hydra-core")

import stepscope
from stepscope.callbacks import StepscopeLogger, hydra_arguments

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


class Classifier(lightning.LightningModule):
    """Three layers."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
            torch.nn.Linear(1024, 10),
        )  # fmt: skip

    def training_step(self, batch, _index):
        """Return the loss of a batch."""
        inputs, targets = batch
        loss = torch.nn.functional.cross_entropy(self.layers(inputs), targets)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _index):
        """Log the accuracy of a batch."""
        inputs, targets = batch
        self.log("val_accuracy", (self.layers(inputs).argmax(1) == targets).float().mean())

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def loader(samples, seed):
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 256, generator=random)
    targets = inputs[:, :10].argmax(1)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=256)


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="lightning_example")
def main(config):
    lightning.seed_everything(0, verbose=False)
    callbacks = list(hydra.utils.instantiate(config.callbacks or {}).values())
    trainer = lightning.Trainer(
        max_epochs=config.epochs,
        accelerator="auto",
        devices=1,
        accumulate_grad_batches=config.accumulate_grad_batches,
        callbacks=callbacks,
        logger=StepscopeLogger(project=config.project_name, name=config.exp_name),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # 5000 is no multiple of 2 * 256: the last batch is short, and the last step of an epoch has fewer of them.
    trainer.fit(Classifier(), loader(5000, 1), loader(512, 2), ckpt_path=config.ckpt_path)
    past = stepscope.open(stepscope.runs()[0].path)
    print(f"{past.state}: {len(past.series('samples').value)} steps, {past.series('samples').value.sum():.0f} samples")
    print(f"look at it: stepscope show {past.path}")


if __name__ == "__main__":
    sys.argv[1:] = hydra_arguments(sys.argv[1:])  # `callbacks=a,b` would be a sweep
    main()
