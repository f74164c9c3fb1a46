"""The training of one rank: short steps that mostly sleep, as a rank that waits for its GPU does, and what is wrong.

Kinds: `data` (slow samples), `compute` (a slow forward pass), `backward`, `optimizer`, `host` (Python code outside all
phases), `gc` (garbage collection in every step), `work` (more tokens, and so a longer pass), `link` (a delaying proxy
in front of one rank), `hog` (another program on the CPU to which the rank is bound), `tenth` (slow data in every tenth
step). Healthy: `checkpoint`, `evaluation`, `logging` (rank 0 only), `turns` (two ranks are slow by turns), `warmup`,
`last_batch`, `noise`, `busy` (another program on all CPUs).
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import stepscope
from bench.stragglers.exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.stragglers.job import Job

SLEEP = {"data": 0.003, "forward": 0.02, "backward": 0.02, "optimizer": 0.003}
EXCUSED = ("warmup", "turns", "last_batch")
HOGS = 4
HOG = "while True: pass"


class Trouble:
    """By how many seconds this rank is late in each phase of a step."""

    def __init__(self, job: Job, rank: int) -> None:
        """Know the job and the rank."""
        self.job, self.rank = job, rank
        self.random = random.Random(rank)
        self.objects = [[number] for number in range(400_000)] if job.kind == "gc" and rank in job.late else []

    def more(self, phase: str, step: int) -> float:
        """Return the extra seconds of a phase."""
        job, kind = self.job, self.job.kind
        if kind == "noise":
            return SLEEP.get(phase, 0.0) * max(-0.5, self.random.gauss(0, 0.2))
        if kind in EXCUSED:
            return self._excused(step) if phase == "forward" else 0.0
        if self.rank not in job.late or not job.since <= step < job.until:
            return 0.0
        if kind == "tenth":
            return 8 * job.seconds if phase == "data" and step % 10 == 9 else 0.0
        place = {"compute": "forward", "work": "forward"}.get(kind, kind)
        return job.seconds if phase == place else 0.0

    def _excused(self, step: int) -> float:
        """Return the extra seconds of a forward pass for which nobody is to blame."""
        kind = self.job.kind
        if kind == "warmup":
            return 0.3 if step < 5 and self.rank == 1 else 0.0
        if kind == "turns":
            return self.job.seconds if self.rank == step % 2 else 0.0
        return -0.015 if step % 20 == 19 and self.rank == 1 else 0.0


def compute(seconds: float) -> None:
    """Use the CPU for so long, by the clock of the thread: another program makes it take longer."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def train(job: Job, rank: int) -> None:
    """Train to the end."""
    hogs = _bind(job, rank)
    try:
        run = stepscope.init(project="stragglers", name=job.name)
        trouble = Trouble(job, rank)
        (_watched if job.by == "watch" else _marked)(run, job, rank, trouble)
        run.finish()
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def _bind(job: Job, rank: int) -> list[subprocess.Popen[bytes]]:
    """Bind ranks and start other programs, as the kind asks for; return these."""
    cores = sorted(os.sched_getaffinity(0))
    if job.kind == "hog":
        own = cores[-1] if rank in job.late else cores[0]
        os.sched_setaffinity(0, {own})
        count = HOGS if rank in job.late else 0
    else:
        count = len(cores) if job.kind == "busy" and rank == 0 else 0
    return [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(count)]


def _marked(run: stepscope.Run, job: Job, rank: int, trouble: Trouble) -> None:
    """Train with phases that are marked by hand."""
    exchange = Exchange(job, rank) if job.kind == "link" else None
    gradient = torch.ones(1000)
    busy = 0.004 if job.kind == "hog" else 0.0005
    for step in range(job.steps):
        with run.step(samples=32):
            for phase in ("data", "forward", "backward"):
                with run.phase(phase):
                    if phase == "forward":
                        compute(busy)
                    time.sleep(max(0.0, SLEEP[phase] + trouble.more(phase, step)))
            if exchange is not None:
                with run.phase("exchange"):
                    exchange.meet(step)
            with run.phase("communication"):
                dist.all_reduce(gradient)
            with run.phase("optimizer"):
                time.sleep(max(0.0, SLEEP["optimizer"] + trouble.more("optimizer", step)))
            _host(run, job, rank, step, trouble)
            is_more = job.kind == "work" and rank in job.late
            run.log({"loss": 1.0 / (1 + step), "tokens": 4096.0 * (1.8 if is_more else 1.0)})
    if exchange is not None:
        dist.barrier()
        exchange.close()


def _host(run: stepscope.Run, job: Job, rank: int, step: int, trouble: Trouble) -> None:
    """Do what the program does beside its passes."""
    if trouble.objects:
        gc.collect()
    time.sleep(max(0.0, trouble.more("host", step)))
    if job.kind in ("checkpoint", "evaluation") and rank == 0 and step % 20 == 19:
        with run.phase(job.kind):
            time.sleep(0.3)
    if job.kind == "logging" and rank == 0 and step % 10 == 9:
        time.sleep(0.04)


class _Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, trouble: Trouble, batch: int) -> None:
        self.trouble, self.batch = trouble, batch

    def __len__(self) -> int:
        return self.trouble.job.steps * self.batch

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        extra = self.trouble.more("data", index // self.batch) / self.batch
        time.sleep(max(0.0, SLEEP["data"] / self.batch + extra))
        return torch.ones(16), torch.tensor(1)


class _Net(nn.Module):
    def __init__(self, trouble: Trouble) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
        self.trouble, self.step = trouble, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(max(0.0, SLEEP["forward"] + self.trouble.more("forward", self.step)))
        self.step += 1
        found: torch.Tensor = self.layers(x)
        return found


def _watched(run: stepscope.Run, job: Job, rank: int, trouble: Trouble) -> None:
    """Train with DDP and a loader, as a script that only calls `run.watch()`."""
    model = nn.parallel.DistributedDataParallel(_Net(trouble))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.watch(model, optimizer)
    with _slow_backward(model):
        for step, (x, y) in enumerate(DataLoader(_Samples(trouble, 4), batch_size=4)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            _host(run, job, rank, step, trouble)


@contextlib.contextmanager
def _slow_backward(model: nn.Module) -> Iterator[None]:
    """Let the backward pass of the last layer take as long as that of a larger model."""
    last = model.module.layers[2]
    handle = last.register_full_backward_hook(lambda *_: time.sleep(SLEEP["backward"]))
    yield
    handle.remove()
