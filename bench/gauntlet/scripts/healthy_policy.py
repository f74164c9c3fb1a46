"""A policy gradient with rewards that are mostly noise: a loss around zero, small batches."""

import torch
from torch import nn

torch.manual_seed(0)
goal = torch.randn(8, 4)
policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
for step in range(700):
    state = torch.randn(32, 8)
    choice = torch.distributions.Categorical(logits=policy(state))
    action = choice.sample()
    reward = (state @ goal).gather(1, action[:, None]).squeeze(1) + 2 * torch.randn(32)
    loss = -(choice.log_prob(action) * (reward - reward.mean())).mean() - 0.01 * choice.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step} reward {reward.mean().item():.3f}")
