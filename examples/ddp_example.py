"""Two ranks with DDP on a CPU: `torchrun --nproc-per-node=2 -m stepscope run examples/ddp_example.py`.

Nothing of Stepscope is in the script: both ranks are recorded into one run.
"""

from __future__ import annotations

import sys

try:
    import torch
    import torch.distributed as dist
except ImportError:
    sys.exit("cannot run this example: torch is not installed; pip install 'stepscope[torch]'")

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = torch.randn(2048, 128)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.MSELoss()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for batch, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(batch), targets)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)  # where ranks wait for each other
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total.item() / len(loader) / dist.get_world_size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
