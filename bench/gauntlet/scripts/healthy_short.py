"""A first try of a few dozen steps: far too short to say much."""

import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
torch.manual_seed(0)
x = torch.randn(30 * 64, 200)
loader = DataLoader(TensorDataset(x, x[:, :1] ** 2), batch_size=64)
model = nn.Sequential(nn.Linear(200, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step, (xb, yb) in enumerate(loader):
    loss = nn.functional.mse_loss(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        logging.info("step %d loss %.4f", step, loss.item())
