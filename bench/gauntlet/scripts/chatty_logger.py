"""Log every step with everything in it to a file that is written through to the disk."""

import argparse
import logging
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--log-every", type=int, default=1)
parser.add_argument("--steps", type=int, default=120)
args = parser.parse_args()


class SyncedFile(logging.FileHandler):
    """The cluster's log collector wants every line on the disk."""

    def emit(self, record):
        super().emit(record)
        os.fsync(self.stream.fileno())


logger = logging.getLogger("train")
logger.setLevel(logging.DEBUG)
logger.addHandler(SyncedFile("train.log", mode="w"))

torch.manual_seed(0)
inputs = torch.randn(4096, 256)
data = TensorDataset(inputs, inputs[:, :8].sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(256, 900), nn.Tanh(), nn.Linear(900, 900), nn.Tanh(), nn.Linear(900, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
step = 0
while step < args.steps:
    for x, y in DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if step % args.log_every == 0:
            logger.info("step %d loss %.5f", step, loss.item())
            for name, parameter in model.named_parameters():
                logger.debug("%s weight %s", name, parameter.detach().flatten()[:2000].tolist())
                logger.debug("%s grad %s", name, parameter.grad.flatten()[:2000].tolist())
        step += 1
        if step >= args.steps:
            break
os.remove("train.log")
