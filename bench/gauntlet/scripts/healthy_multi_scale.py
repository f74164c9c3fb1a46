"""Multi-scale training: the size of the images changes every few batches, and with it the time of a step."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(0)
torch.manual_seed(0)
labels = torch.randint(0, 4, (1600,))
images = 0.5 * torch.randn(1600, 3, 32, 32) + labels[:, None, None, None] * 0.4
loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
size = 32
for epoch in range(3):
    for step, (x, y) in enumerate(loader):
        if step % 10 == 0:
            size = random.choice((24, 32, 48, 64))
        x = nn.functional.interpolate(x, size=(size, size))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f}")
