"""A variational autoencoder: a loss in hundreds, of two parts."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
codes = torch.randn(5000, 4)
data = torch.sigmoid(codes @ torch.randn(4, 196) * 1.5)
loader = DataLoader(TensorDataset(data), batch_size=50, shuffle=True)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(196, 400), nn.Linear(400, 16), nn.Linear(400, 16)
        self.fc3, self.fc4 = nn.Linear(16, 400), nn.Linear(400, 196)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(4):
    for (x,) in loader:
        optimizer.zero_grad()
        output, mu, logvar = model(x)
        loss = F.binary_cross_entropy(output, x, reduction="sum") - 0.5 * torch.sum(
            1 + logvar - mu.pow(2) - logvar.exp()
        )
        loss.backward()
        optimizer.step()
    print(f"====> Epoch: {epoch} loss per sample: {loss.item() / len(x):.4f}")
