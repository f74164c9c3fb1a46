"""A tiny network on batches of four: a loss that is mostly noise, and learns all the same."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(4000, 10)
y = ((x[:, :3].sum(1) + 0.8 * torch.randn(4000)) > 0).long()
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(2500):
    pick = torch.randint(0, len(x), (4,))
    loss = nn.functional.cross_entropy(model(x[pick]), y[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 250 == 0:
        print(f"step {step} loss {loss.item():.4f}")
