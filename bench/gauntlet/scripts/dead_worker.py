"""A loader whose worker is killed in the middle of the epoch, as the kernel does when memory runs out."""

import os
import signal
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Images(Dataset):
    def __len__(self):
        return 6400

    def __getitem__(self, index):
        if index == 3000 and get_worker_info() is not None and "--healthy" not in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.manual_seed(index)
        return torch.randn(3 * 16 * 16), index % 5


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(768, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (x, y) in enumerate(DataLoader(Images(), batch_size=64, num_workers=2)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
