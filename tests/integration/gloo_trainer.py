"""A small training on several gloo ranks, with one fault planted: `gloo_trainer.py FOLDER FAULT RANKS [CULPRIT]`.

The program imports torch once and forks the ranks. It prints `path <run>`, then `fault <seconds since 1970>` when the
fault begins, and for a healthy job `done` at its end. Faults and pauses are functions below, by their name.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import torch
from torch import distributed as dist

import stepscope

AT, STEPS, SECONDS = 12, 10**6, 0.1
"""The step of the fault, the steps of a job that is not healthy, and the seconds of computing in one."""
HEALTHY_STEPS = 40
IFF_UP, SIOCSIFFLAGS, CLONE_NEWNET, PTRACE_ATTACH = 1, 0x8914, 0x40000000, 16
LIBC = ctypes.CDLL(None, use_errno=True)


def tell(text):
    """Print a line at once: all ranks share one pipe."""
    os.write(1, f"{text}\n".encode())


# Faults of one rank, in its data loading: it never arrives.


def loader_stands(job):
    """A worker of a DataLoader never returns."""

    class Stuck(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            time.sleep(3600)

    next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))


def sleeps(job):
    time.sleep(3600)


def computes_forever(job):
    number = 0
    while True:
        number += 1


# Faults outside of torch.


def waits_for_lock(job):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def waits_for_queue(job):
    queue.Queue().get()


def opens_fifo(job):
    path = job.folder / "fifo"
    os.mkfifo(path)
    open(path, "rb")  # noqa: SIM115 - never returns


def keeps_gil_computing(job):
    sum(range(10**15))


def keeps_gil_sleeping(job):
    while True:  # a signal wakes it
        ctypes.PyDLL(None).sleep(3600)


def is_stopped(job):
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)


def is_traced(job):
    (job.folder / "trace").write_text(str(os.getpid()))
    time.sleep(3600)


# A rank that dies while its sockets stay open, as those of its workers: the others are not told.


def dies(job):
    if not os.fork():
        time.sleep(3600)
    os.kill(os.getpid(), signal.SIGKILL)


# Ranks in different collectives. (With another shape gloo does not hang: it aborts.)


def other_collective(job):
    dist.all_gather([torch.zeros(64) for _ in range(job.ranks)], torch.zeros(64))


def other_order(job):
    dist.broadcast(torch.zeros(8), src=0)
    dist.all_reduce(torch.zeros(64))


def skips_one(job):
    job.skips = True


# The network, for all ranks: they are in a network of their own, which goes down.


def network_down(job):
    set_loopback(up=False)


# Healthy pauses.


def evaluate(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.zeros(64, 64) @ torch.zeros(64, 64)
        time.sleep(0.01)


def save_checkpoint(job, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.save({"model": torch.zeros(200_000)}, job.folder / f"model-{job.rank}.pt")
        time.sleep(0.01)


def stand(job, seconds):
    time.sleep(seconds)


def compute(job, seconds):
    evaluate(seconds)


PAUSES = {
    "evaluates_all": ("all", "evaluation", compute, 16),
    "evaluates_first": ("first", "evaluation", compute, 16),
    "evaluates_untold": ("first", "", compute, 16),
    "validates_last": ("last", "validation", compute, 16),
    "saves_all": ("all", "checkpoint", save_checkpoint, 14),
    "saves_first": ("first", "checkpoint", save_checkpoint, 16),
    "saves_untold": ("first", "", save_checkpoint, 16),
    "compiles": ("all", "compile", compute, 16),
    "compiles_first": ("first", "compile", compute, 16),
    "starts_epoch": ("all", "", stand, 7),
    "one_slow_step": ("last", "", stand, 7),
    "first_batch": ("all", "", stand, 0),
    "uneven": ("all", "", stand, 0),
}
"""Healthy pauses: which ranks, in which phase (none is told if it is empty), what they do, and for how many seconds."""


def pause(job):
    """Take the pause of a healthy job."""
    who, phase, do, seconds = PAUSES[job.fault]
    if who == "all" or job.rank == (0 if who == "first" else job.ranks - 1):
        with job.run.phase(phase) if phase else contextlib.nullcontext():
            do(job, seconds)


LOCAL = {
    one.__name__: one
    for one in (
        *(loader_stands, sleeps, computes_forever, waits_for_lock, waits_for_queue, opens_fifo, keeps_gil_computing),
        *(keeps_gil_sleeping, is_stopped, is_traced, dies, other_collective, other_order, skips_one),
    )
}


def set_loopback(*, up):
    """Bring the loopback interface of this network namespace up or down: down, packets are lost without a word."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP if up else 0))


class Job:
    """One rank of the training."""

    def __init__(self, folder, fault, ranks, culprit, rank):
        self.folder, self.fault, self.ranks, self.culprit, self.rank = folder, fault, ranks, culprit, rank
        self.skips = False
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
        torch.set_num_threads(1)
        self.run = stepscope.init(project="gloo", run_id=folder.name, resume=True)
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
        if rank == 0:
            tell(f"path {self.run.path}")

    def batch(self, step):
        """Return the data of a step; here the fault of one rank begins."""
        if step == 0 and self.fault == "first_batch":
            time.sleep(14)
        if step == AT and self.fault in LOCAL and self.rank == self.culprit:
            tell(f"fault {time.time()}")
            LOCAL[self.fault](self)
        if step == AT and self.fault == "network_down" and self.rank == 0:
            tell(f"fault {time.time()}")
            network_down(self)
        if step == AT and self.fault in PAUSES:
            pause(self)
        if self.fault == "uneven":
            time.sleep(SECONDS * (step % 5) * (1 + self.rank % 2))
        return torch.ones(64) * step

    def train(self):
        """Train; a healthy job ends."""
        for step in range(HEALTHY_STEPS if self.fault in PAUSES else STEPS):
            with self.run.step():
                gradient = self.batch(step)
                time.sleep(SECONDS)
                if self.skips:
                    self.skips = False
                else:
                    dist.all_reduce(gradient)
                dist.all_gather([torch.zeros(16) for _ in range(self.ranks)], torch.ones(16))
                self.run.log(loss=float(gradient.sum()))
        dist.barrier()
        self.run.finish()


def main(folder, fault, ranks, culprit):
    """Fork the ranks, and wait for them."""
    if fault == "network_down":
        if LIBC.unshare(CLONE_NEWNET):
            tell("no network of our own")
            return 1
        set_loopback(up=True)
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if not pid:
            Job(folder, fault, ranks, culprit, rank).train()
            os._exit(0)
        pids.append(pid)
    (folder / "pids").write_text(" ".join(map(str, pids)))
    trace = folder / "trace"
    while fault == "is_traced":
        if trace.exists() and trace.read_text():
            LIBC.ptrace(PTRACE_ATTACH, int(trace.read_text()), None, None)
            time.sleep(3600)
        time.sleep(0.05)
    for pid in pids:
        os.waitpid(pid, 0)
    tell("done")
    return 0


if __name__ == "__main__":
    ranks = int(sys.argv[3])
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], ranks, int(sys.argv[4]) if len(sys.argv) > 4 else ranks - 1))
