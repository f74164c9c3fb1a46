"""Fine-tune the head of a network whose body stays as it is."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(160, 800), nn.ReLU(), nn.Linear(800, 400), nn.ReLU())
body.requires_grad_(False)
body.eval()
head = nn.Sequential(nn.Linear(400, 200), nn.ReLU(), nn.Linear(200, 6))
x = torch.randn(250 * 64, 160)
with torch.no_grad():
    y = body(x)[:, :6].argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
for step, (xb, yb) in enumerate(loader):
    with torch.no_grad():
        features = body(xb)
    loss = nn.functional.cross_entropy(head(features), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(step, loss.item())
