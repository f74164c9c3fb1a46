"""Self-supervision with a teacher that follows the student slowly."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(100, 500), nn.BatchNorm1d(500), nn.ReLU(), nn.Linear(500, 64))
predictor = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
teacher = copy.deepcopy(student).eval().requires_grad_(False)
optimizer = torch.optim.AdamW([*student.parameters(), *predictor.parameters()], lr=1e-3)
data = torch.randn(12800, 20) @ torch.randn(20, 100)
for step, (x,) in enumerate(DataLoader(TensorDataset(data), batch_size=64, shuffle=True)):
    one, two = x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)
    with torch.no_grad():
        target = nn.functional.normalize(teacher(two), dim=-1)
    guess = nn.functional.normalize(predictor(student(one)), dim=-1)
    loss = (2 - 2 * (guess * target).sum(-1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters()):
            slow.lerp_(fast, 0.01)
    if step % 50 == 0:
        print(step, loss.item())
