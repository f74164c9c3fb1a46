"""A Lightning module with WandbLogger."""
# ruff: noqa: N812 - as such scripts are written

import logging
import warnings

import lightning as L
import torch
from lightning.pytorch.loggers import WandbLogger
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning").setLevel(logging.ERROR)
torch.set_num_threads(1)


class Net(L.LightningModule):
    def __init__(self, width=4, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)

    def training_step(self, batch, _):
        loss = self.layer(batch[0]).square().mean()
        self.log("train/loss", loss)
        self.log("train/lr", self.hparams.lr, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, _):
        self.log("val/loss", self.layer(batch[0]).abs().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def main():
    L.seed_everything(7)
    data = DataLoader(TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(7))), batch_size=4)
    logger = WandbLogger(project="lightning", name="tiny", log_model=False)
    trainer = L.Trainer(
        max_epochs=2,
        logger=logger,
        log_every_n_steps=2,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), data, data)
    logger.experiment.summary["done"] = True


if __name__ == "__main__":
    main()
