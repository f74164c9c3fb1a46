"""REINFORCE on a small bandit with contexts: the loss is noise around zero, which says nothing."""

import torch
from torch import nn

torch.manual_seed(0)
truth = torch.randn(16, 6)
policy = nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 6))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
baseline = 0.0
for episode in range(400):
    context = torch.randn(128, 16)
    choice = torch.distributions.Categorical(logits=policy(context))
    action = choice.sample()
    reward = (context @ truth).gather(1, action[:, None]).squeeze(1) + torch.randn(128)
    baseline = 0.95 * baseline + 0.05 * reward.mean().item()
    loss = -(choice.log_prob(action) * (reward - baseline)).mean() - 0.01 * choice.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode % 50 == 0:
        print(f"episode {episode} reward {reward.mean().item():.3f} loss {loss.item():.3f}")
