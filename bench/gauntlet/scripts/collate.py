"""A graph-like model whose batches are put together by a slow collate function."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Graphs(Dataset):
    def __init__(self, count=3200):
        generator = torch.Generator().manual_seed(1)
        self.nodes = torch.randn(count, 24, 16, generator=generator)
        self.edges = torch.randint(0, 24, (count, 60, 2), generator=generator)

    def __len__(self):
        return len(self.nodes)

    def __getitem__(self, index):
        return self.nodes[index], self.edges[index], self.nodes[index, :, 0].sum()


def collate_slow(batch):
    """Build a dense adjacency matrix edge by edge."""
    size = 24
    adjacency = torch.zeros(len(batch), size, size)
    for number, (_, edges, _) in enumerate(batch):
        for a, b in edges.tolist():
            adjacency[number, a, b] += 1.0
    return torch.stack([b[0] for b in batch]), adjacency, torch.stack([b[2] for b in batch])


def collate_fast(batch):
    edges = torch.stack([b[1] for b in batch])
    flat = edges[..., 0] * 24 + edges[..., 1]
    adjacency = torch.zeros(len(batch), 24 * 24).scatter_add_(1, flat, torch.ones_like(flat, dtype=torch.float))
    return torch.stack([b[0] for b in batch]), adjacency.view(-1, 24, 24), torch.stack([b[2] for b in batch])


class GraphNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(16, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, nodes, adjacency):
        hidden = torch.relu(adjacency @ self.first(nodes))
        hidden = torch.relu(adjacency @ self.second(hidden))
        return self.out(hidden).sum((1, 2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--vectorized", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Graphs(), batch_size=32, collate_fn=collate_fast if options.vectorized else collate_slow)
    net = GraphNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    for nodes, adjacency, target in loader:
        loss = nn.functional.smooth_l1_loss(net(nodes, adjacency), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("final loss", loss.item())
