"""A plain PyTorch training, with nothing of Stepscope in it: `stepscope run examples/torch_example.py`.

It has what most scripts have: a DataLoader with workers, gradient clipping, an evaluation and a checkpoint per epoch.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

try:
    import torch
except ImportError:
    sys.exit("cannot run this example: torch is not installed; pip install 'stepscope[torch]'")

from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, SAMPLES, WIDTH = 3, 4096, 768


def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for inputs, targets in loader:
            right += int((model(inputs).argmax(1) == targets).sum())
    model.train()
    return right / len(loader.dataset)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    inputs = torch.randn(SAMPLES, 64)
    data = TensorDataset(inputs, (inputs @ torch.randn(64, 10)).argmax(1))
    loader = DataLoader(data, batch_size=128, shuffle=True, num_workers=workers)
    model = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(batch), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        accuracy = evaluate(model, DataLoader(data, batch_size=512))
        torch.save(model.state_dict(), Path(tempfile.gettempdir()) / "stepscope-example.pt")
        print(f"epoch {epoch}: accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
