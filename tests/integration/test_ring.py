"""The ring between processes: its place, what happens when nobody drains it, and what others see of its header."""

from __future__ import annotations

import mmap
import os
import signal
import time

import pytest

import stepscope
from stepscope.core import ring
from stepscope.core.places import find_places
from stepscope.store.layout import RunFolder
from stepscope.store.states import read_nodes
from tests.faults import spaces
from tests.integration.processes import PATIENCE, until

NO_SHARED_MEMORY = """
    import json, subprocess, sys
    import stepscope
    from stepscope.core.places import find_places
    from tests.integration.processes import until

    subprocess.run(["mount", "-t", "tmpfs", "-o", sys.argv[1], "tmpfs", "/dev/shm"], check=True)
    with stepscope.init(project="no-memory") as run:
        on_disk = bool(list(find_places().disk.rglob("*.ring")))
        for step in range(1000):
            run.log({"x": step})
    past = stepscope.open(run.path)
    until(lambda: past.state == "finished", "the end")
    print(json.dumps([on_disk, past.series("x").value.tolist() == list(range(1000))]))
"""


@pytest.mark.parametrize("options", ["ro", "size=1m", "size=64k,nr_inodes=1"])
def test_without_shared_memory_the_ring_goes_to_local_disk(bench, options):
    """A /dev/shm that is read-only, too small or full is no reason not to record."""
    trainer = bench.start(NO_SHARED_MEMORY, options, prefix=spaces.unshared(spaces.MOUNTS))
    assert trainer.facts() == [True, True]
    assert trainer.err == ""


SMALL_SHARED_MEMORY = """
    import json, os, subprocess, sys, time
    import torch
    import stepscope
    from stepscope.core.places import find_places
    from torch.utils.data import DataLoader, TensorDataset
    from tests.integration.processes import until

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"], check=True)
    torch.set_num_threads(1)

    def train(rank):
        os.environ.update(RANK=str(rank), WORLD_SIZE="8")
        run = stepscope.init(project="eight", run_id="eight")
        data = TensorDataset(torch.zeros(48, 32, 256))
        for (x,) in run.data(DataLoader(data, batch_size=4, num_workers=1)):
            with run.step(samples=len(x)):
                run.log({"x": rank, "size": x.numel()})
        sizes = [path.stat().st_size for path in find_places().shared.rglob("*.ring")]
        with open(f"{sys.argv[1]}/{rank}", "w") as file:
            json.dump([sum(sizes), run.path.as_posix()], file)
        run.finish()

    ranks = []
    for rank in range(8):
        pid = os.fork()
        if not pid:
            try:
                train(rank)
            except BaseException as error:
                print(error, file=sys.stderr)
                os._exit(1)
            os._exit(0)
        ranks.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in ranks]
    told = [json.load(open(f"{sys.argv[1]}/{rank}")) for rank in range(8)]
    past = stepscope.open(told[0][1])
    until(lambda: past.state == "finished", "the end")
    found = past.series("x")
    print(json.dumps([codes, max(size for size, _ in told), sorted(zip(found.rank.tolist(), found.value.tolist()))]))
"""


def test_small_shared_memory_is_left_to_the_data_loaders(bench):
    """With 64 MB of it, 8 ranks and loader workers all run, and our rings take at most a sixteenth."""
    pytest.importorskip("torch", reason="needs torch")
    folder = bench.folder / "told"
    folder.mkdir()
    options = {"PYTHONWARNINGS": "default", "OMP_NUM_THREADS": "1"}
    trainer = bench.start(SMALL_SHARED_MEMORY, folder, prefix=spaces.unshared(spaces.MOUNTS), environ=options)
    codes, ours, found = trainer.facts()
    assert codes == [0] * 8
    assert ours <= (64 << 20) // 16
    assert found == [[rank, rank] for rank in range(8) for _ in range(12)]


LAPPED = """
    import sys
    import stepscope, stepscope.session.watching as watching
    from tests.integration.pace import Calls
    watching.STALE_SECONDS = 600.0  # a stopped watcher stays the only one
    run = stepscope.init(project="lapped", recorder__ring_bytes=256 << 10, recorder__spill_bytes=0)
    print(run.path, flush=True)
    sys.stdin.readline()
    calls = Calls()
    for step in range(20_000):
        calls.time(run.log, {"x": step})
    print(calls.held_up(), flush=True)
    sys.stdin.readline()
    for step in range(20_000, 20_100):
        run.log({"x": step})
    run.finish()
"""


def test_a_lapped_ring_counts_its_losses_exactly(bench):
    """While the watcher is stopped the writer laps it unhindered; then found and lost rows add up, the newest found."""
    trainer = bench.start(LAPPED, stdin=-1)
    path = trainer.line()
    watcher = bench.watcher()
    until(lambda: read_nodes(RunFolder(stepscope.open(path).path))[0], "the watcher's first heartbeat")
    os.kill(watcher, signal.SIGSTOP)
    trainer.process.stdin.write("go\n")
    trainer.process.stdin.flush()
    assert trainer.line() == "False"
    os.kill(watcher, signal.SIGCONT)
    past = stepscope.open(path)
    until(lambda: "x" in past.names(), "rows")
    trainer.process.stdin.write("go\n")
    assert trainer.wait() == 0
    until(lambda: past.state == "finished", "the end")
    found = past.series("x")
    lost = read_nodes(RunFolder(past.path))[0][0].ranks[0].lost
    assert lost > 0
    assert len(found) + lost == 20_100
    assert found.step.tolist() == list(range(lost, 20_100))
    assert past.summary("stepscope/drops_total")["last"] == lost


POLLED = """
    import time
    import stepscope
    run = stepscope.init(project="polled", recorder__ring_bytes=256 << 10)
    print(run.path, flush=True)
    for step in range(10**9):
        run.log({"x": step, "y": 1.0})
        if step % 64 == 0:
            time.sleep(0.0005)
"""
MONOTONIC = {
    "head": ring.WORD_HEAD,
    "oldest": ring.WORD_OLDEST,
    "calls": ring.WORD_CALLS,
    "call time": ring.WORD_CALL_NS,
    "cursor": ring.WORD_CURSOR,
    "expected": ring.WORD_EXPECTED,
    "lost": ring.WORD_LOST,
    "heartbeat": ring.WORD_HEARTBEAT,
}
FIXED = {"magic": ring.WORD_MAGIC, "version": ring.WORD_VERSION, "state": ring.WORD_STATE}


def test_header_words_never_go_back(bench):
    """Polled from another process, every header word only grows and is never seen as 0 once it was set."""
    bench.start(POLLED).line()
    bench.watcher()
    path = until(lambda: find_places().rings(), "the ring")[0]
    until(lambda: _words(path)[ring.WORD_CURSOR] and _words(path)[ring.WORD_OLDEST], "a ring that was lapped")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        words = memoryview(mapped)[: ring.WORDS * 8].cast("Q")
        last, fixed = dict.fromkeys(MONOTONIC, 0), {name: words[word] for name, word in FIXED.items()}
        moving, looks = ("head", "oldest", "calls", "cursor", "expected", "heartbeat"), 0
        first, end = None, time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for name, word in MONOTONIC.items():
                value = words[word]
                assert value >= last[name], name
                last[name] = value
            looks, first = looks + 1, first or dict(last)
            assert {name: words[word] for name, word in FIXED.items()} == fixed
            if looks > 100_000 and all(last[name] > first[name] for name in moving):
                break
        words.release()
    assert looks > 100_000
    assert min(last[name] for name in moving) > 0


def _words(path):
    data = path.read_bytes()[: ring.WORDS * 8]
    return memoryview(data).cast("Q")
