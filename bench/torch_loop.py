"""How much `stepscope run` slows a real torch loop: one CPU thread, steps of 2 ms and of 50 ms, everything default.

As bench/loop.py: short blocks with the hooks on or off in the order ABBA and BAAB in turn, in one process, A/A beside
it, the upper bound of the bootstrap interval against the limit. Measured is the training as it goes on after its first
minute, in which the hooks look more often (at most `recorder.overhead_budget`, but for 0.1 s at the beginning). The
hooks have a rhythm (of short steps they measure four of 256); it goes on through the blocks, which meet all of it by
chance. What they do differs by far less than what neighbours do, so the mean without the outermost fifths counts all
of it. The script itself has no line for us. `traceml-ai`, whose hooks need lines in the script and a process beside it,
is measured in the same way where it is installed.
"""

from __future__ import annotations

import importlib.util
import json
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.figure import Figure, Options
from bench.loop import interval, shown, timed, trimmed
from bench.processes import output_of

STEPS = {"2ms": (0.002, 3.0), "50ms": (0.05, 0.5)}
"""Duration of a step in seconds, and the limit of its slow-down in percent."""
BLOCKS = {"2ms": (80, 60), "50ms": (1, 1)}
"""Steps of a block, and at least so many after the hooks were put on or off, before anything is timed. What neighbours
do to a step of 50 ms they do to the next one too, and less to the one after: so blocks are as short as can be. With
those of two steps and more between them the interval was half as wide again in the same time."""
FOURS = {"2ms": 400, "50ms": 2400}
QUICK_FOURS = 5
SAME_EVERY = 4
"""Of so many fours one is repeated with nothing to compare."""
PEER = "traceml_ai"


def measure(options: Options) -> list[Figure]:
    """Return the slow-down of both steps, what A/A says, and the peer's."""
    if importlib.util.find_spec("torch") is None:
        return [
            Figure(f"torch_{name}", f"torch loop, {name} steps", None, "%", limit, "torch not installed")
            for name, (_, limit) in STEPS.items()
        ]
    found = []
    for name, (_, limit) in STEPS.items():
        fours = QUICK_FOURS if options.quick else FOURS[name]
        printed, _, _ = output_of("-m", "bench.torch_loop", str(options.scratch / name), name, str(fours), "stepscope")
        told = json.loads(printed.splitlines()[-1])
        wall, cpu, same = (interval(np.array(told[key]), trimmed) for key in ("wall", "cpu", "same"))
        beside = f"{shown(wall)}, thread CPU {shown(cpu)}, {4 * fours} blocks, step {told['step'] * 1e3:.2f} ms"
        beside += f", {told['facts']}"
        outside = max(0.0, same[1], -same[2]) if same[1] * same[2] > 0 else 0.0
        found += [
            Figure(
                f"torch_{name}",
                f"torch loop, {name} steps, all hooks: slowed (upper bound)",
                wall[2],
                "%",
                limit,
                beside,
            ),
            Figure(f"torch_{name}_aa", "  A/A: distance of its interval from 0", outside, "%", 0.0, shown(same)),
        ]
    found.append(_peer(options))
    return found


def _peer(options: Options) -> Figure:
    what = "  the same of traceml-ai, 2 ms steps"
    if importlib.util.find_spec(PEER) is None:
        return Figure("torch_2ms_traceml", what, None, "%", None, "traceml-ai not installed")
    fours = QUICK_FOURS if options.quick else FOURS["2ms"]
    printed, _, _ = output_of("-m", "bench.torch_loop", str(options.scratch / "peer"), "2ms", str(fours), PEER)
    wall = interval(np.array(json.loads(printed.splitlines()[-1])["wall"]), trimmed)
    return Figure("torch_2ms_traceml", what, wall[2], "%", None, shown(wall))


class Endless:
    """A dataset that has one batch, over and over."""

    def __init__(self, batch: Any) -> None:
        """Take the batch."""
        self._batch = batch

    def __len__(self) -> int:
        """Be longer than any measurement."""
        return 10**9

    def __getitem__(self, index: int) -> Any:
        """Return the batch."""
        return self._batch


class Training:
    """A small network on one thread, fed by a DataLoader, wide enough that a step takes as long as asked for."""

    def __init__(self, torch: Any, seconds: float) -> None:
        """Build it, first for a guess of the width."""
        self.torch, self.seconds = torch, seconds
        self.build(384 if seconds < 0.01 else 2048)

    def build(self, width: int) -> None:
        """Make the network anew."""
        torch, nn = self.torch, self.torch.nn
        torch.manual_seed(0)
        self.width = width
        self.net = nn.Sequential(
            nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        batch = (torch.randn(64, 256), torch.randint(0, 10, (64,)))
        self.batches = iter(torch.utils.data.DataLoader(Endless(batch), batch_size=None))

    def calibrate(self) -> float:
        """Choose the width for steps of about the duration asked for; return what they take, in seconds."""
        took = 0.0
        for _ in range(6):
            count = max(2, round(0.02 / self.seconds))
            self.plain(count)
            took = float(np.median([timed(self.plain, count)[1] / count for _ in range(7)]))
            if abs(took / self.seconds - 1) < 0.15:
                break
            self.build(max(16, int(self.width * (self.seconds / took) ** 0.55)))
        return took

    def plain(self, steps: int) -> None:
        """Train, as any script does."""
        loss_of = self.torch.nn.functional.cross_entropy
        for _ in range(steps):
            x, y = next(self.batches)
            self.optimizer.zero_grad()
            loss = loss_of(self.net(x), y)
            loss.backward()
            self.optimizer.step()
            loss.item()

    def traced(self, steps: int) -> None:
        """Train with the peer's lines."""
        import traceml_ai as traceml

        loss_of = self.torch.nn.functional.cross_entropy
        for _ in range(steps):
            with traceml.trace_step(self.net):
                x, y = next(self.batches)
                self.optimizer.zero_grad()
                loss = loss_of(self.net(x), y)
                loss.backward()
                self.optimizer.step()
                loss.item()


class Hooks:
    """All hooks of `stepscope run`, which are put on and taken off outside of what is timed."""

    def __init__(self, training: Training, folder: Path, *, settled: bool) -> None:
        """Begin a run and let the hooks find out what a step costs, for as long as they take to settle if `settled`."""
        import stepscope
        from stepscope.integrations.torch.budget import RICH

        self.run = stepscope.init(project="torch_loop", dir=folder)
        self.run.watch(training.net, training.optimizer)
        self.run.instrument.listen()
        self.block = training.plain
        self.block(100)
        while settled and self.run.instrument.timeline.budget.weighed <= RICH:
            self.block(100)
        self.off()

    def on(self) -> None:
        """Put them on."""
        self.run.instrument.resume()

    def off(self) -> None:
        """Take them off."""
        self.run.instrument.suspend()

    def facts(self) -> str:
        """Say how often the hooks measure a step, and what they think they cost."""
        budget = self.run.instrument.timeline.budget
        return f"one step of {budget.every} measured, {budget.cost / 1e3:.0f} us"


class Peer:
    """The lines of traceml-ai and its process; its patches stay, and do nothing outside of its steps."""

    def __init__(self, training: Training, folder: Path, *, settled: bool) -> None:  # noqa: ARG002 - as Hooks
        """Start its aggregator and let it patch torch."""
        import traceml_ai as traceml

        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        program = str(Path(sys.executable).with_name("traceml"))
        command = [program, "serve", "--logs-dir", str(folder), "--aggregator-port", str(port)]
        self._server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        told = traceml.init(mode="auto", aggregator_port=port, logs_dir=str(folder), connect_timeout_sec=30.0)
        assert not told.disabled
        self.block = training.traced
        self.block(100)

    def on(self) -> None:
        """Do nothing."""

    off = on

    def facts(self) -> str:
        """Say nothing, and end the process."""
        self._server.kill()  # it waits for more ranks, and for a Ctrl-C of its own
        self._server.wait(30)
        return ""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Fours:
    """Blocks off, on, on, off, or the reverse in turn."""

    def __init__(self, training: Training, name: str, usual: float) -> None:
        """Train as `training` does, whose steps take `usual` seconds."""
        self._training, self._usual = training, usual
        self._steps, self._warm = BLOCKS[name]
        self._chance = random.Random(0)  # where in their rhythm the hooks are met

    def ratio(self, hooks: Hooks | Peer | None, turn: int) -> tuple[float, float]:
        """Return the ratio with/without: wall and CPU; without hooks nothing is compared with nothing.

        After each change, and at the beginning, the interpreter finds its specialised code again, which takes 20 to 40
        steps, before anything is timed: a training puts the hooks on once.
        """
        total = np.zeros((2, 2))
        now = -1
        for which in (0, 1, 1, 0) if turn % 2 else (1, 0, 0, 1):
            block = hooks.block if hooks and which else self._training.plain
            if which != now:
                if hooks is not None and (which or now == 1):
                    (hooks.on if which else hooks.off)()
                now = which
                block(self._warm + self._chance.randrange(self._steps))
            total[which] += timed(block, self._steps, self._usual)
        if hooks is not None and now == 1:
            hooks.off()
        wall, cpu = total[1] / total[0]
        return float(wall), float(cpu)


def main(arguments: list[str]) -> int:
    """Train in this process and print the ratios as JSON."""
    import torch

    torch.set_num_threads(1)
    folder, (seconds, _), fours = Path(arguments[0]), STEPS[arguments[1]], int(arguments[2])
    training = Training(torch, seconds)
    step = training.calibrate()
    hooks = (Hooks if arguments[3] == "stepscope" else Peer)(training, folder, settled=fours > 20)
    measured = Fours(training, arguments[1], step)
    compared, same = [], []
    for turn in range(fours):
        compared.append(measured.ratio(hooks, turn))
        if turn % SAME_EVERY == 0:
            same.append(measured.ratio(None, turn // SAME_EVERY)[0])
    wall, cpu = zip(*compared, strict=True)
    print(json.dumps({"wall": wall, "cpu": cpu, "same": same, "step": step, "facts": hooks.facts()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
