"""Two threads that wait for each other: a prefetcher of one's own with a queue that nobody fills any more."""

import argparse
import queue
import threading

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batches", type=int, default=150)
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()


def produce(out):
    for number in range(args.batches):
        out.put(torch.randn(64, 128, generator=torch.Generator().manual_seed(number)))


torch.manual_seed(0)
batches = queue.Queue(maxsize=4)
threading.Thread(target=produce, args=(batches,), daemon=True).start()
model = nn.Sequential(nn.Linear(128, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(args.steps):
    x = batches.get()
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        print("step", step, "loss", loss.item(), flush=True)
