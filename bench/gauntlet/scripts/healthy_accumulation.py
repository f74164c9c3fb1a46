"""Gradients of four batches are added up before each update."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4
torch.manual_seed(0)
x = torch.randn(9600, 120)
y = x[:, :5].sum(1, keepdim=True).tanh() + 0.05 * torch.randn(9600, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(120, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
optimizer.zero_grad()
for i, (xb, yb) in enumerate(loader):
    loss = nn.functional.mse_loss(model(xb), yb) / ACCUMULATE
    loss.backward()
    if (i + 1) % ACCUMULATE == 0:
        optimizer.step()
        optimizer.zero_grad()
    if i % 100 == 0:
        print(i, loss.item() * ACCUMULATE)
