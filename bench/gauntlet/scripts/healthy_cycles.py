"""Warm-up and a learning rate that goes up and down in triangles: the loss rises with every cycle and comes back."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(4096, 32)
y = (x @ torch.randn(32, 6) + 0.5 * torch.randn(4096, 6)).argmax(1)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for step in range(1000):
    rate = 0.2 * min(1.0, (step + 1) / 50) * (0.05 + 0.95 * abs(step % 250 - 125) / 125)
    for group in optimizer.param_groups:
        group["lr"] = rate
    pick = torch.randint(0, len(x), (64,))
    loss = nn.functional.cross_entropy(model(x[pick]), y[pick])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 125 == 0:
        print(f"step {step} loss {loss.item():.4f} lr {rate:.4f}")
