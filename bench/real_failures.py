"""Failures among many ranks as people reported them, written before the rules were tried on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import failure_texts as texts
from bench import real_failure_texts as real
from bench.drawn_failures import BEGIN, FAILS, PER_NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.drawn_failures import Failure, Job

EXCEPTION = ("exception",)


def _rank(job: Job) -> int:
    return int(job.random.integers(1, job.ranks))


def _error(job: Job) -> str:
    return texts.any_of(job.random, texts.ERRORS)


def _raises(name: str, kinds: Sequence[str], lines: Callable[[Job, int], list[str]]) -> Callable[[Job], Failure]:
    """Return a failure in which one rank prints lines, and ends with exit code 1."""

    def draw(job: Job) -> Failure:
        rank = _rank(job)
        job.collapse([rank], FAILS)
        job.fail(rank, FAILS, lines(job, rank))
        return job.done(name, [rank], kinds, _rank(job))

    return draw


def _dies(
    name: str, kinds: Sequence[str], signal: str, lines: Callable[[Job, int], list[str]], launcher: Sequence[str] = ()
) -> Callable[[Job], Failure]:
    """Return a failure in which one rank prints lines, and is killed by a signal."""

    def draw(job: Job) -> Failure:
        rank = _rank(job)
        job.collapse([rank], FAILS)
        said = lines(job, rank)
        if said:
            job.say(rank, FAILS, said, prefix=False)
        job.end(rank, FAILS + 0.2, "killed", f"killed by {signal}")
        job.launcher = list(launcher)
        return job.done(name, [rank], kinds, _rank(job))

    return draw


def _lightning(job: Job, code: int) -> int:
    """Let rank 0, which started the others, end them all."""
    rank = _rank(job)
    for other in job.others(rank, 0):
        job.end(other, FAILS + 1 + 0.1 * float(job.random.random()), "killed", "killed by SIGTERM")
    job.say(0, FAILS + 0.9, real.lightning_ends(rank, code), prefix=False)
    job.end(0, FAILS + 1.2, "killed", "killed by SIGKILL")
    return rank


def _lightning_raises(job: Job) -> Failure:
    rank = _lightning(job, 1)
    job.fail(rank, FAILS, real.lightning("RuntimeError: The size of tensor a (4096) must match the size of tensor b"))
    return job.done("Lightning ends all for one exception", [rank], EXCEPTION, 0)


def _lightning_crash(job: Job) -> Failure:
    rank = _lightning(job, -11)
    job.end(rank, FAILS, "killed", "killed by SIGSEGV")
    return job.done("Lightning ends all for one crash", [rank], ("native",), 0)


def _stale_handle(job: Job) -> Failure:
    node = _rank(job) // PER_NODE
    ranks = list(range(node * PER_NODE, (node + 1) * PER_NODE))
    job.collapse(ranks, FAILS)
    for rank in ranks:
        error = f"OSError: [Errno 116] Stale file handle: '/data/shards/{rank:05d}.bin'"
        job.fail(rank, FAILS + 0.5 * float(job.random.random()), texts.traceback(error, texts.CALLS[3:4]))
    return job.done("the file system of a node went away", ranks, ("exception", "disk_full"))


def _port_taken(job: Job) -> Failure:
    job.fail(0, FAILS, real.port_taken())
    for rank in job.others(0):
        job.fail(rank, FAILS + 600 + float(job.random.random()), real.no_store())
    return job.done("the port of the store is taken", [0], EXCEPTION, _rank(job))


def _unused_parameters(job: Job) -> Failure:
    error = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
    for rank in range(job.ranks):
        job.fail(rank, FAILS + 0.2 * float(job.random.random()), texts.traceback(error))
    return job.done("unused parameters on all ranks", list(range(job.ranks)), EXCEPTION)


def _barrier(job: Job) -> Failure:
    rank = _rank(job)
    for other in job.others(rank):
        job.fail(other, FAILS + 600 + 0.2 * float(job.random.random()), real.barrier(rank))
    job.end(rank, FAILS + 640, "killed", "killed by SIGTERM")
    return job.done("a rank did not come to the barrier", [rank], ("hang",), 0)


def _heartbeat(job: Job) -> Failure:
    rank = _rank(job)
    for other in job.others(rank):
        job.timeout(other, FAILS + 600 + 0.5 * float(job.random.random()))
    job.say(rank, FAILS + 480, real.heartbeat(rank), prefix=False)
    job.end(rank, FAILS + 481, "killed", "killed by SIGABRT")
    return job.done("the watchdog of one rank is stuck", [rank], ("hang", "native", "thread"), job.others(rank)[0])


def _survived_errors(job: Job) -> Failure:
    """Another rank survives errors until a second before the failure."""
    rank, other = (int(one) for one in job.random.choice(range(1, job.ranks), 2, replace=False))
    job.collapse([rank], FAILS)
    for at in range(12):
        job.say(other, FAILS - 1 - 60 * at, real.skipped_sample(), prefix=False)
    job.say(other, FAILS - 0.5, ["step 2400 | loss 2.290 | 498.2 ms"], "out")
    job.fail(rank, FAILS, texts.traceback(_error(job)))
    return job.done("errors that another rank survives", [rank], EXCEPTION, other)


def _survived_long_ago(job: Job) -> Failure:
    """Kill a rank without a word that survived an error when it began."""
    rank = _rank(job)
    job.collapse([rank], FAILS)
    job.say(rank, BEGIN + 5, real.refused(), prefix=False)
    job.end(rank, FAILS, "killed", "killed by SIGKILL")
    job.launcher = real.slurm_kills()
    return job.done("an old error, then killed without a word", [rank], ("killed", "host_memory"), _rank(job))


def _warned_before(job: Job) -> Failure:
    """All ranks warn about sockets at the start, and others about NCCL at the end."""
    rank = _rank(job)
    job.collapse([rank], FAILS)
    for other in range(job.ranks):
        job.say(other, BEGIN, [real.SOCKET] * 3, prefix=False)
        if other != rank:
            job.say(other, FAILS + 0.005, real.nccl_warning(other), prefix=False)
    job.fail(rank, FAILS + 0.001, texts.traceback(_error(job)))
    return job.done("warnings of sockets and NCCL", [rank], EXCEPTION, _rank(job))


def _noise_after(job: Job) -> Failure:
    """Let the rank print a lot after its error."""
    rank = _rank(job)
    job.collapse([rank], FAILS)
    job.fail(rank, FAILS, [*texts.traceback(_error(job)), *real.wandb_summary(), *real.ignored()])
    return job.done("much noise after the error", [rank], EXCEPTION, _rank(job))


def _ignored_elsewhere(job: Job) -> Failure:
    """Ranks that are ended print tracebacks of their clean-up, some of them first by a wrong clock."""
    rank = _rank(job)
    for other in job.others(rank):
        at = FAILS + 0.5 + float(job.random.random())
        job.say(other, at, real.ignored(), prefix=False)
        job.end(other, at + 0.3, "killed", "killed by SIGTERM")
    job.end(rank, FAILS, "killed", "killed by SIGKILL")
    return job.done("killed, and clean-up fails elsewhere", [rank], ("killed",), _rank(job))


def _shared_memory(job: Job) -> Failure:
    rank = _rank(job)
    job.collapse([rank], FAILS)
    job.say(rank, FAILS, real.shared_memory_full(), prefix=False)
    job.fail(rank, FAILS + 0.1, real.bus_error())
    return job.done("the shared memory is full", [rank], ("worker", "disk_full"), _rank(job))


def _two_nodes_of_memory(job: Job) -> Failure:
    """Two ranks of different nodes run out of memory within a millisecond; both began it."""
    ranks = sorted(int(one) * PER_NODE + 3 for one in job.random.choice(job.ranks // PER_NODE, 2, replace=False))
    job.collapse(ranks, FAILS)
    for at, rank in enumerate(ranks):
        job.fail(rank, FAILS + 0.001 * at, real.workspace())
    return job.done("the same full GPU on two nodes", ranks, ("gpu_memory",))


def _plain(make: Callable[[str], list[str]]) -> Callable[[Job, int], list[str]]:
    return lambda job, _: make(_error(job))


ILLEGAL = "CUDA error: an illegal memory access was encountered"
GPU = ("gpu_fault", "device_assert")
CASES: tuple[Callable[[Job], Failure], ...] = (
    _raises("a traceback drawn by rich", EXCEPTION, _plain(real.rich_box)),
    _raises("a traceback drawn by loguru", EXCEPTION, _plain(real.loguru)),
    _raises("an error in a line of JSON", EXCEPTION, _plain(real.json_line)),
    _raises("an exception group", EXCEPTION, _plain(real.group)),
    _raises("an exception in Lightning", EXCEPTION, _plain(real.lightning)),
    _lightning_raises,
    _lightning_crash,
    _raises("bus error of a loader's worker", ("worker",), lambda *_: real.bus_error()),
    _shared_memory,
    _dies("illegal access, seen by the watchdog", GPU, "SIGABRT", lambda _, rank: real.watchdog_of(rank, ILLEGAL)),
    _raises("ECC, seen by NCCL", GPU, lambda *_: real.nccl_of_gpu("uncorrectable ECC error encountered")),
    _raises("a full GPU, in words of torch 1", ("gpu_memory",), lambda _, rank: real.old_gpu_memory(rank % PER_NODE)),
    _two_nodes_of_memory,
    _dies("no memory in C++", ("native", "host_memory"), "SIGABRT", lambda *_: real.bad_alloc()),
    _raises("full disk, in words of Rust", ("disk_full",), lambda *_: real.safetensors_full()),
    _raises("quota", ("disk_full",), lambda *_: texts.traceback("OSError: [Errno 122] Disk quota exceeded")),
    _stale_handle,
    _raises("Megatron finds NaN", EXCEPTION, lambda _, rank: real.megatron_nan(rank)),
    _port_taken,
    _unused_parameters,
    _barrier,
    _heartbeat,
    _raises("a thread of the loader", ("exception", "thread", "worker", *GPU), lambda *_: real.pin_memory()),
    _survived_errors,
    _survived_long_ago,
    _dies("DeepSpeed ends all", ("killed",), "SIGKILL", lambda *_: [], real.deepspeed_ends([4711, 4712], -9)),
    _warned_before,
    _noise_after,
    _ignored_elsewhere,
)
"""Every failure."""
