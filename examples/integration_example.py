"""Add Stepscope to a plain PyTorch loop with TrainingMonitor. Needs torch; runs on a CPU in seconds.

The same loop without the monitor's class is examples/plain_loop.py: both record the same kind of run.
"""

from __future__ import annotations

import sys
import tempfile

try:
    import torch
except ImportError:
    sys.exit("cannot run this example: torch is not installed; pip install 'stepscope[torch]'")

from stepscope.monitor import TrainingMonitor


def train(monitor: TrainingMonitor, steps: int = 200) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(512, 16), torch.randint(0, 4, (512,))
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(inputs)
        loss = torch.nn.functional.cross_entropy(output, targets)
        loss.backward()
        optimizer.step()
        accuracy = (output.argmax(1) == targets).float().mean()
        # A tensor is taken as it is: no .item(), so a GPU would not be waited for.
        monitor.log_training_step(model=model, optimizer=optimizer, loss=loss, accuracy=accuracy)


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="stepscope-example-")
    with TrainingMonitor({"save_dir": folder}) as monitor:
        train(monitor)
        stats = monitor.get_training_stats()
    print(f"{stats['total_steps']} steps, loss {stats['max_loss']:.3f} -> {stats['current_loss']:.3f}")
    print(f"look: stepscope show latest --dir {folder}")


if __name__ == "__main__":
    main()
