"""Actor and critic with an optimizer each, on a toy environment; no loader at all."""

import torch
from torch import nn

torch.manual_seed(0)


class Track:
    """Keep a point near the origin: push left, right or not."""

    def __init__(self, count=64):
        self.state = torch.randn(count, 4)

    def step(self, action):
        self.state[:, 1] += (action.float() - 1) * 0.1
        self.state[:, 0] += self.state[:, 1] * 0.1
        reward = -self.state[:, 0].abs()
        lost = self.state[:, 0].abs() > 3
        self.state[lost] = torch.randn(int(lost.sum()), 4)
        return self.state.clone(), reward


actor = nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 3))
critic = nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, 1))
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
environment = Track()
state = environment.state.clone()
for step in range(350):
    choice = torch.distributions.Categorical(logits=actor(state))
    action = choice.sample()
    after, reward = environment.step(action)
    value = critic(state).squeeze(1)
    with torch.no_grad():
        target = reward + 0.95 * critic(after).squeeze(1)
    critic_loss = nn.functional.mse_loss(value, target)
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    actor_loss = -(choice.log_prob(action) * (target - value.detach())).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    state = after
    if step % 50 == 0:
        print(step, reward.mean().item())
