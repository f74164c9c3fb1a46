"""A compiled model with one shape: it is compiled once, at the first step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(300 * 64, 100)
loader = DataLoader(TensorDataset(x, x[:, :6].argmax(1)), batch_size=64)
model = nn.Sequential(nn.Linear(100, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 6))
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, (xb, yb) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(compiled(xb), yb)
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(step, loss.item())
