"""A training script in the style of cleanrl: TensorBoard's SummaryWriter, synchronised into W&B."""
# ruff: noqa: NPY002, UP031 - as such scripts are written

import argparse
import random
import time

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--exp-name", type=str, default="ppo")
    parser.add_argument("--gym-id", type=str, default="CartPole-v1")
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-updates", type=int, default=6)
    parser.add_argument("--track", action="store_true", default=True)
    parser.add_argument("--wandb-project-name", type=str, default="ppo-implementation-details")
    parser.add_argument("--wandb-entity", type=str, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    run_name = f"{args.gym_id}__{args.exp_name}__{args.seed}"
    if args.track:
        import wandb

        wandb.init(
            project=args.wandb_project_name,
            entity=args.wandb_entity,
            sync_tensorboard=True,
            config=vars(args),
            name=run_name,
            monitor_gym=False,
            save_code=True,
        )
    writer = SummaryWriter(f"runs/{run_name}")
    writer.add_text(
        "hyperparameters",
        "|param|value|\n|-|-|\n%s" % ("\n".join([f"|{key}|{value}|" for key, value in vars(args).items()])),
    )
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    agent = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    global_step = 0
    start_time = time.time()
    for update in range(1, args.num_updates + 1):
        optimizer.param_groups[0]["lr"] = (1.0 - (update - 1.0) / args.num_updates) * args.learning_rate
        for _ in range(32):
            global_step += 1
        if update % 2 == 0:
            writer.add_scalar("charts/episodic_return", float(update * 10), global_step)
            writer.add_scalar("charts/episodic_length", update * 10, global_step)
        loss = agent(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.add_scalar("charts/learning_rate", optimizer.param_groups[0]["lr"], global_step)
        writer.add_scalar("losses/value_loss", loss.item(), global_step)
        writer.add_scalar("losses/clipfrac", np.mean([0.1 * update, 0.2]), global_step)
    writer.close()
