"""Real launchers: which run, which rank and which attempt the processes of one job take themselves for."""

from __future__ import annotations

import pytest

from tests.integration.processes import ended_runs, free_port

pytest.importorskip("torch", reason="needs torch, whose launchers these are")
QUIET = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TORCHELASTIC_ERROR_FILE": ""}


def torchrun(bench, code, *options):
    """Run a script under torchrun with two ranks."""
    port = f"--master-port={free_port()}"
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", port, *options]
    trainer = bench.start(code, environ=QUIET, interpreter=launcher)
    trainer.wait()
    return trainer


ELASTIC = """
    import os, sys, time
    import stepscope
    from tests.integration.processes import until
    run = stepscope.init(project="elastic")
    for step in range(20):
        run.log({"x": run.rank * 100 + run.attempt})
    if run.attempt == 0:
        if run.rank == 1:
            until(lambda: os.path.exists("ready"), "the rows of the other rank")
            run.log({"last": 1.0})
            sys.exit(3)
        open("ready", "w").close()
        time.sleep(600)
    run.finish()
"""


def test_ranks_and_restarts_of_one_torchrun_are_one_run(bench):
    """Two ranks, a failure, a restart: one run with ranks 0 and 1 and attempts 0 and 1, every row under its own."""
    trainer = torchrun(bench, ELASTIC, "--max-restarts=1")
    assert trainer.process.returncode == 0, trainer.err
    (past,) = ended_runs()
    assert past.attempts == [0, 1]
    for rank in (0, 1):
        for attempt in (0, 1):
            series = past.series("x", rank=rank, attempt=attempt)
            assert series.value.tolist() == [rank * 100 + attempt] * 20
            assert series.step.tolist() == list(range(20))
    assert past.state == "finished"
    assert past.meta["world_size"] == 2
    assert past.problems() == []


PLAIN = """
    import stepscope
    with stepscope.init(project="plain") as run:
        run.log({"x": run.rank})
"""


def test_two_default_torchruns_do_not_merge(bench):
    """Launched one after the other without an id, they are two runs of two ranks each, both attempt 0."""
    for _ in range(2):
        trainer = torchrun(bench, PLAIN)
        assert trainer.process.returncode == 0, trainer.err
    found = ended_runs()
    assert len(found) == 2
    assert [past.attempts for past in found] == [[0], [0]]
    assert [sorted(past.series("x").rank.tolist()) for past in found] == [[0, 1], [0, 1]]


SPAWNED = """
    import os, sys
    import torch.distributed
    import torch.multiprocessing
    import stepscope

    def train(rank, how, port):
        if how == "environment":
            os.environ.update(RANK=str(rank), WORLD_SIZE="2")
        else:
            address = f"tcp://127.0.0.1:{port}"
            torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
        with stepscope.init(project="spawned") as run:
            run.log({"x": run.rank})
        if how != "environment":
            torch.distributed.destroy_process_group()

    if __name__ == "__main__":
        torch.multiprocessing.spawn(train, (sys.argv[1], int(sys.argv[2])), nprocs=2)
"""


@pytest.mark.parametrize("how", ["environment", "process group"])
def test_the_ranks_of_mp_spawn_are_one_run(bench, how):
    """With ranks in the environment or in a process group, the processes of one spawn share a run."""
    trainer = bench.start(SPAWNED, how, free_port(), environ=QUIET)
    assert trainer.wait() == 0, trainer.err
    (past,) = ended_runs()
    assert sorted(zip(past.series("x").rank.tolist(), past.series("x").value.tolist(), strict=True)) == [(0, 0), (1, 1)]
    assert (past.attempts, past.state) == ([0], "finished")


@pytest.mark.promise("S1-027")
@pytest.mark.parametrize("setting", ["recorder__track_rank_0_only=True", "recorder__distributed=False"])
def test_other_ranks_can_be_left_inert(bench, setting):
    """track_rank_0_only, or distributed off: rank 1 records nothing, says nothing and starts nothing."""
    code = f"""
        import os
        import stepscope
        with stepscope.init(project="first", run_id="one", {setting}) as run:
            run.log({{"x": run.rank}})
        print(repr(run.id), os.environ["RANK"])
    """
    for rank in (1, 0):
        trainer = bench.run(code, environ={"RANK": str(rank), "WORLD_SIZE": "2"})
        assert (trainer.process.returncode, trainer.err) == (0, "")
        assert trainer.out.split() == ["''" if rank else "'one'", str(rank)]
    (past,) = ended_runs()
    assert past.series("x").rank.tolist() == [0]


LOADER = """
    import json, sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset
    import stepscope

    class Slow(Dataset):
        def __len__(self):
            return 32
        def __getitem__(self, index):
            time.sleep(0.002)
            stepscope.log({"from a worker": 1.0})
            return torch.tensor([float(index)])

    if __name__ == "__main__":
        run = stepscope.init(project="loader")
        loader = DataLoader(Slow(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1])
        data = run.data(loader)
        seen = []
        for batch in data:
            with run.step(samples=len(batch)):
                run.log({"sum": batch.sum()})
                seen.append(float(batch.sum()))
        run.finish()
        print(json.dumps([str(run.path), len(data), data.batch_size, seen]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_are_inert(bench, method):
    """Around a loader with worker processes, the trainer's rows and waits are there, and nothing from the workers."""
    trainer = bench.start(LOADER, method, environ=QUIET)
    path, length, batch_size, seen = trainer.facts()
    (past,) = ended_runs()
    assert str(past.path) == path
    assert (length, batch_size) == (8, 4)
    assert past.series("sum").value.tolist() == seen
    assert past.series("samples").value.tolist() == [4.0] * 8
    assert (past.series("phase/data").value > 0).all()
    assert "from a worker" not in past.names()
