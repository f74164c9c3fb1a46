"""Fine-tuning with few labels: the loss is small soon, an evaluation every 60 steps, single examples stay hard."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
base = nn.Sequential(nn.Linear(40, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
x = torch.randn(1200, 40)
y = (x[:, 0] + 0.3 * x[:, 1] > 0).long()
y[:20] = 1 - y[:20]  # labels that are wrong
loader = DataLoader(TensorDataset(x[:900], y[:900]), batch_size=16, shuffle=True)
held = TensorDataset(x[900:], y[900:])
model = nn.Sequential(base, nn.Linear(200, 2))
optimizer = torch.optim.AdamW(
    [{"params": base.parameters(), "lr": 2e-4}, {"params": model[1].parameters(), "lr": 1e-3}]
)
step = 0
for epoch in range(10):
    for xb, yb in loader:
        loss = nn.functional.cross_entropy(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 60 == 0:
            model.eval()
            with torch.no_grad():
                right = (model(held.tensors[0]).argmax(1) == held.tensors[1]).float().mean()
            model.train()
            print(f"step {step} loss {loss.item():.4f} accuracy {right:.3f}")
