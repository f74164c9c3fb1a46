"""What the worker processes of a DataLoader spend on a batch, and workers that die."""

from __future__ import annotations

import signal

import pytest

from tests.integration.processes import the_run
from tests.integration.test_launchers import QUIET

pytest.importorskip("torch", reason="needs torch, whose loaders these are")

RUN = ["-m", "stepscope", "run"]

WORKERS = """
    import sys, time
    import torch

    class Slow(torch.utils.data.Dataset):
        def __init__(self):
            self.transform = Grow()
        def __len__(self):
            return 32
        def __getitem__(self, index):
            time.sleep(0.004)
            return self.transform(torch.ones(4)), index % 2

    class Grow:
        def __call__(self, x):
            time.sleep(0.002)
            return x * 2

    def collate(items):
        time.sleep(0.005)
        return torch.utils.data.default_collate(items)

    def begin(worker):
        assert torch.utils.data.get_worker_info().id == worker

    if __name__ == "__main__":
        torch.set_num_threads(1)
        options = {"collate_fn": collate, "worker_init_fn": begin, "multiprocessing_context": sys.argv[1]}
        loader = torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=2, **options)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        assert loader.worker_init_fn is begin
        assert type(loader.dataset.transform) is Grow
"""


@pytest.mark.promise("S1-004")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_time_in_workers_is_brought_back(bench, method):
    """Loading, its transforms and collating are timed in the worker, per batch, for workers started in any way."""
    trainer = bench.run(WORKERS, method, environ=QUIET, interpreter=RUN)
    assert trainer.process.returncode == 0, trainer.err
    past = the_run()
    load, transform, collate = (past.series(f"data/{part}_seconds").value for part in ("load", "transform", "collate"))
    assert len(load) == len(transform) == len(collate) == 8
    assert (load >= 4 * 0.006).all()  # never shorter than it slept; how much longer is the machine's business
    assert (transform >= 4 * 0.002).all()
    assert (transform < load).all()
    assert (collate >= 0.005).all()
    assert past.series("samples").value.tolist() == [4.0] * 8


DEATH = """
    import os, signal
    import torch

    class Deadly(torch.utils.data.Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            if index == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.ones(4)

    if __name__ == "__main__":
        for batch in torch.utils.data.DataLoader(Deadly(), batch_size=4, num_workers=2):
            pass
"""


def test_the_death_of_a_worker_is_an_event(bench):
    """The error goes on as it comes; the run keeps which worker died and of what."""
    trainer = bench.run(DEATH, environ=QUIET, interpreter=RUN)
    assert trainer.process.returncode == 1  # by torch's error, or by that of a pipe that was cut: as without us
    past = the_run()
    (event,) = [event for event in past.events() if event["kind"] == "worker_died"]
    assert list(event["workers"].values()) == [-signal.SIGKILL]
