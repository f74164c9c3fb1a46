"""A small GAN: two models, two optimizers, losses that never settle."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
angle = torch.rand(6400) * 6.2832
points = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(6400, 2)
loader = DataLoader(TensorDataset(points), batch_size=64, shuffle=True, drop_last=True)
G = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
D = nn.Sequential(nn.Linear(2, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
for epoch in range(4):
    for (real,) in loader:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = G(torch.randn(len(real), 8))
        opt_d.zero_grad()
        loss_d = bce(D(real), ones) + bce(D(fake.detach()), zeros)
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = bce(D(fake), ones)
        loss_g.backward()
        opt_g.step()
    print(f"[{epoch}] D {loss_d.item():.3f} G {loss_g.item():.3f}")
