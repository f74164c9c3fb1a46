"""The kinds of failures among many ranks, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bench import failure_texts as texts
from bench.drawn_failures import FAILS, PER_NODE, RANKS, Failure, Job

GENERIC = ("exception",)
Draw = Callable[[Job], Failure]


def _rank(job: Job) -> int:
    return int(job.random.integers(job.ranks))


def _error(job: Job) -> str:
    return texts.any_of(job.random, texts.ERRORS)


def _one(name: str, kinds: tuple[str, ...], lines: Callable[[Job, int], list[str]], delay: float = 0.0) -> Draw:
    """Return a kind of failure in which one rank prints its error and ends."""

    def draw(job: Job) -> Failure:
        rank = _rank(job)
        job.collapse([rank], FAILS)
        job.fail(rank, FAILS, lines(job, rank), delay)
        return job.done(name, [rank], kinds, _rank(job) if job.random.random() < 0.4 else None)

    return draw


def _killed(name: str, kinds: tuple[str, ...], state: str, cause: str, lines: Callable[[], list[str]] = list) -> Draw:
    """Return a kind of failure in which one rank is killed; it may print some lines before."""

    def draw(job: Job) -> Failure:
        rank = _rank(job)
        job.collapse([rank], FAILS)
        job.say(rank, FAILS, lines(), prefix=False)
        job.end(rank, FAILS + 0.01, state, cause)
        return job.done(name, [rank], kinds, _rank(job) if job.random.random() < 0.4 else None)

    return draw


def _hang(job: Job) -> Failure:
    """One rank stands still; all others wait until their time runs out."""
    rank = _rank(job)
    for other in job.others(rank):
        job.timeout(other, FAILS + 600 + 0.5 * float(job.random.random()))
    job.end(rank, FAILS + 640, "killed", "killed by SIGTERM")
    return job.done("NCCL timeout cascade, one rank stands still", [rank], ("hang",), job.others(rank)[0])


def _hang_then_noise(job: Job) -> Failure:
    """As before, but the rank that stood still raises an exception when the launcher ends it."""
    rank = _rank(job)
    for other in job.others(rank):
        job.timeout(other, FAILS + 600 + 0.5 * float(job.random.random()))
    job.fail(rank, FAILS + 640, texts.traceback("AttributeError: 'NoneType' object has no attribute 'close'"))
    return job.done("timeout cascade, then noise", [rank], ("hang",), job.others(rank)[0])


def _hang_then_killed(job: Job) -> Failure:
    """As before, but the rank that stood still is killed at the end."""
    rank = _rank(job)
    for other in job.others(rank):
        job.timeout(other, FAILS + 600 + 0.5 * float(job.random.random()))
    job.end(rank, FAILS + 660, "killed", "killed by SIGKILL")
    return job.done("timeout cascade, then SIGKILL", [rank], ("hang",), job.others(rank)[0])


def _memory_of_node(job: Job) -> Failure:
    """All GPUs of a node run out of memory together."""
    node = _rank(job) // PER_NODE
    ranks = list(range(node * PER_NODE, (node + 1) * PER_NODE))
    job.collapse(ranks, FAILS)
    for rank in ranks:
        job.fail(rank, FAILS + 0.2 * float(job.random.random()), texts.gpu_memory(rank % PER_NODE))
    return job.done("CUDA out of memory on a whole node", ranks, ("gpu_memory",))


def _imports(job: Job) -> Failure:
    """No rank can import a module."""
    for rank in range(job.ranks):
        lines = texts.traceback("ModuleNotFoundError: No module named 'flash_attn'", texts.CALLS[:1])
        job.has_prefix = False
        job.fail(rank, FAILS + 20 * float(job.random.random()), lines)
    return job.done("import error on all ranks", list(range(job.ranks)), ("import", "exception"))


def _same_assertion(job: Job) -> Failure:
    """Let the ranks of one group raise the same exception together."""
    ranks = sorted(int(one) for one in job.random.choice(job.ranks, 8, replace=False))
    job.collapse(ranks, FAILS)
    for rank in ranks:
        job.fail(rank, FAILS + 0.1 * float(job.random.random()), texts.traceback(f"AssertionError: stage {rank}: NaN"))
    return job.done("the same assertion on 8 ranks", ranks, GENERIC)


def _node_lost(job: Job) -> Failure:
    """Let a node lose power: its ranks say nothing, and no watcher sees their end."""
    node = _rank(job) // PER_NODE
    ranks = list(range(node * PER_NODE, (node + 1) * PER_NODE))
    job.collapse(ranks, FAILS, launcher=False)
    for rank in ranks:
        job.end(rank, None, "lost", "its watcher has said nothing for 30 s", inferred=True)
    return job.done("a node is gone", ranks, ("lost",), job.others(*ranks)[0])


def _two_errors(job: Job) -> Failure:
    """Another rank has an error of its own a while after the first."""
    rank, second = (int(one) for one in job.random.choice(job.ranks, 2, replace=False))
    job.collapse([rank, second], FAILS)
    job.fail(rank, FAILS, texts.chained(_error(job), "RuntimeError: cannot make the batch"))
    job.fail(second, FAILS + 4, texts.traceback("AttributeError: 'NoneType' object has no attribute 'shape'"))
    return job.done("a second exception 4 s later", [rank], GENERIC, second)


def _killed_then_error(job: Job) -> Failure:
    """Kill a rank; another one reacts with an exception that no table knows."""
    rank, second = (int(one) for one in job.random.choice(job.ranks, 2, replace=False))
    job.collapse([rank, second], FAILS)
    job.end(rank, FAILS, "killed", "killed by SIGKILL")
    job.fail(second, FAILS + 5, texts.traceback("my_project.comm.PeerGone: no answer in the ring"))
    return job.done("SIGKILL, then an unknown exception", [rank], ("killed",), second)


def _launcher_kills(job: Job) -> Failure:
    """Let a rank fail; the launcher kills all that do not stop."""
    rank = _rank(job)
    for other in job.others(rank):
        job.end(other, FAILS + 30 + float(job.random.random()), "killed", "killed by SIGKILL")
    job.fail(rank, FAILS, texts.traceback(_error(job)))
    return job.done("an exception, then SIGKILL for all others", [rank], GENERIC)


def _by_hand(job: Job) -> Failure:
    """Let a person press Ctrl-C."""
    for rank in range(job.ranks):
        at = FAILS + 0.3 * float(job.random.random())
        job.say(rank, at, texts.traceback("KeyboardInterrupt"))
        job.end(rank, at + 0.1, "interrupted", "Ctrl-C")
    return job.done("Ctrl-C", list(range(job.ranks)), ("stopped",))


def _exit_code(job: Job) -> Failure:
    """Let a rank leave with a message and an exit code."""
    rank = _rank(job)
    job.collapse([rank], FAILS)
    job.say(rank, FAILS, ["config error: sequence_length must divide hidden_size"], prefix=False)
    job.end(rank, FAILS + 0.02, "failed", "exit code 1")
    return job.done("sys.exit with a message", [rank], ("exit",))


def _caught_collective(job: Job) -> Failure:
    """Let a rank fail while it handles an exception, and then lose the others in its clean-up."""
    rank = _rank(job)
    job.collapse([rank], FAILS)
    lines = [*texts.traceback(_error(job)), "", texts.CONTEXT, "", *texts.gloo_closed()]
    job.fail(rank, FAILS, lines)
    return job.done("an exception, then a lost peer in its clean-up", [rank], GENERIC)


CASES: tuple[Draw, ...] = (
    _one("Python exception", GENERIC, lambda job, _: texts.traceback(_error(job))),
    _one("a chain of exceptions", GENERIC, lambda job, _: texts.chained(_error(job), "RuntimeError: no batch")),
    _one(
        "an exception during another",
        GENERIC,
        lambda job, _: texts.chained("KeyError: 'cached'", _error(job), texts.CONTEXT),
    ),
    _one("an exception in a loader's worker", GENERIC, lambda job, _: texts.worker_exception(_error(job))),
    _one("an exception printed 3 s late", GENERIC, lambda job, _: texts.traceback(_error(job)), delay=3.0),
    _one("CUDA out of memory", ("gpu_memory",), lambda _, rank: texts.gpu_memory(rank % PER_NODE)),
    _memory_of_node,
    _hang,
    _hang_then_noise,
    _hang_then_killed,
    _killed("segfault with its stack", ("native",), "killed", "killed by SIGSEGV, with a core dump", texts.segfault),
    _killed("segfault without a word", ("native",), "killed", "killed by SIGSEGV"),
    _killed("SIGKILL", ("killed",), "killed", "killed by SIGKILL"),
    _killed("killed for memory", ("host_memory",), "oom-killed", "out of memory: limit 64 GiB, last seen with 63 GiB"),
    _one("disk full", ("disk_full",), lambda *_: texts.disk_full()),
    _one("an assertion in a GPU kernel", ("device_assert",), lambda *_: texts.device_assert()),
    _one("ECC", ("gpu_fault",), lambda *_: texts.ecc()),
    _one("a killed worker of the loader", ("worker",), lambda *_: texts.worker_killed()),
    _imports,
    _same_assertion,
    _node_lost,
    _two_errors,
    _killed_then_error,
    _launcher_kills,
    _by_hand,
    _exit_code,
    _caught_collective,
)
"""Every kind of failure."""


def drawn(seed: int, count: int = 40, ranks: int = RANKS, cases: Sequence[Draw] = CASES) -> list[Failure]:
    """Return cases of every kind in turn; the same seed gives the same cases."""
    found = []
    for at in range(count):
        random = np.random.default_rng((seed, at))
        events, prefix, merged, mixed = (random.random(4) < (0.5, 0.8, 0.3, 0.2)).tolist()
        job = Job(random, ranks, has_events=events, has_prefix=prefix, is_merged=merged, is_mixed=mixed)
        job.background()
        found.append(cases[at % len(cases)](job))
    return found
