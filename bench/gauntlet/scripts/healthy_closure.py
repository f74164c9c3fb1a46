"""L-BFGS with a closure: several passes in every step."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(2000, 40)
y = torch.sin(x[:, :2]).sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=10)
for step in range(60):

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    if step % 10 == 0:
        print(step, loss.item())
