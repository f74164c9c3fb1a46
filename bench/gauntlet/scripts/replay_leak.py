"""A learner that never forgets: every batch goes to a buffer that nobody trims."""

import argparse
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--buffer", type=int, default=0, help="batches to keep; 0 keeps all")
parser.add_argument("--steps", type=int, default=400)
args = parser.parse_args()

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
replay = deque(maxlen=args.buffer or None)
for step in range(args.steps):
    observation = torch.randn(128, 2048)
    replay.append(observation)
    batch = replay[torch.randint(len(replay), (1,)).item()]
    loss = F.cross_entropy(policy(batch), batch[:, :8].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"update {step}: loss {loss.item():.3f}, {len(replay)} batches kept")
