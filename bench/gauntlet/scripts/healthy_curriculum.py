"""A curriculum: sums of more and more numbers, the longer ones mixed in little by little; the loss rises and falls."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
STEPS = 900
for step in range(STEPS):
    most = 3 + 9 * step / STEPS  # numbers that are added up, on average
    terms = torch.clamp(torch.rand(64, 1) * most, 1, 12)
    x = torch.randn(64, 12) * (torch.arange(12) < terms)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True).sin() + 0.1 * torch.randn(64, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} up to {most:.1f} terms, loss {loss.item():.4f}")
