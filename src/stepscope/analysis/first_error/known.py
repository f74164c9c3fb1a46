"""What known lines of failing trainings mean: an error of its own, a consequence of another rank's error, or noise."""

from __future__ import annotations

import re
from typing import NamedTuple

PRIMARY, WEAK, SECONDARY, NOISE = "primary", "weak", "secondary", "noise"
"""An error of its own; one that may be either; a consequence of another rank's error; no error."""


class Known(NamedTuple):
    """One known text: its role, the kind of error, what it means, and the pattern that finds it."""

    role: str
    kind: str
    means: str
    pattern: re.Pattern[str]


def _table(role: str, *rows: tuple[str, str, str]) -> list[Known]:
    return [Known(role, kind, means, re.compile(pattern)) for kind, means, pattern in rows]


FAULTS = _table(
    PRIMARY,
    ("gpu_fault", "the GPU has a memory fault", r"uncorrectable (?:NVLink|ECC)|NVRM: Xid|Xid \(PCI|\bXid \d+"),
    ("gpu_fault", "the GPU was lost", r"GPU is lost|fallen off the bus|CUDA error: (?:unknown error|no longer)"),
    (
        "device_assert",
        "a check inside a GPU kernel failed, such as an index out of range",
        r"\.cu\S*:\d+: .*Assertion `.*` failed|device-side assert",
    ),
    (
        "gpu_memory",
        "the memory of the GPU ran out",
        r"(?:CUDA|HIP|CUDA error:|Cuda failure 2 ')\s?out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED",
    ),
    ("gpu_fault", "a GPU kernel failed", r"CUDA error: (?:an illegal|misaligned|unspecified launch|invalid program)"),
    ("gpu_fault", "a GPU library failed", r"CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|cuDNN error"),
    ("disk_full", "the disk is full", r"\[Errno 28\]|No space left on device|\[Errno 122\]|Disk quota exceeded"),
    (
        "host_memory",
        "the memory of the machine or container ran out",
        r"^MemoryError|\[Errno 12\]|Cannot allocate memory|can't allocate memory|std::bad_alloc",
    ),
    ("worker", "a process that loads data died", r"DataLoader worker \(pid.*(?:exited|killed)"),
    ("native", "native code failed", r"Fatal Python error: (?:Segmentation fault|Bus error|Illegal|Floating)"),
    ("native", "native code failed", r"Segmentation fault \(core dumped\)$|^Segmentation fault$|^Bus error"),
    ("import", "a module could not be imported", r"^(?:ModuleNotFoundError|ImportError)\b"),
)
"""Faults whose text is certain, also inside a message of NCCL: they are looked up first."""

TOLD = "the launcher or another process ended it"
PEER = "its peer was gone already"
WAITED = "it waited for another rank until its time ran out"
ASKED = "the process group had failed on another rank"
CONSEQUENCES = _table(
    SECONDARY,
    ("timeout", WAITED, r"Watchdog caught collective operation timeout|collective operation timeout"),
    ("timeout", WAITED, r"Timed out waiting \d+ms|wait timeout after \d+|timed out after \d+ (?:milli)?seconds"),
    ("timeout", WAITED, r"DistStoreError|[Ss]ocket [Tt]imeout|client socket has timed out|monitoredBarrier"),
    ("timeout", WAITED, r"Timeout(?:Error)?: .*(?:[Ss]tore|barrier|rendezvous)|RendezvousTimeoutError"),
    ("timeout", WAITED, r"failure detected by watchdog|Received a (?:timeout|dump) signal|HeartbeatMonitor"),
    ("timeout", WAITED, r"Some NCCL operations have failed or timed out|To avoid data inconsistency"),
    ("peer", PEER, r"[Cc]onnection (?:was )?(?:closed by (?:remote )?peer|reset by (?:remote )?peer|refused|aborted)"),
    ("peer", PEER, r"ncclRemoteError|remote process exiting prematurely|remote process (?:has )?exited"),
    ("peer", PEER, r"ncclSystemError|socketProgress|Broken ?[Pp]ipe|failed to recv, got 0 bytes|No route to host"),
    ("peer", PEER, r"TCPStore\.cpp.*(?:recvValue|sendBytes|recv|send|write) ?failed|recvValueWithTimeout failed"),
    ("peer", PEER, r"ibv_poll_cq|IBV_WC_\w+|NET/IB ?: .*(?:error|status)|ECONNRESET|EPIPE"),
    ("group", ASKED, r"DistBackendError|NCCL communicator was aborted|ncclInternalError|ncclInvalidUsage.*abort"),
    ("group", ASKED, r"ncclUnhandledCudaError|NCCL error|Process group watchdog thread terminated"),
    ("launcher", TOLD, r"ChildFailedError|ProcessExitedException|ProcessRaisedException|Root Cause \(first observed"),
    ("launcher", TOLD, r"Sending process \d+ closing signal|failed \(exitcode: -?\d+\) local_rank"),
    ("launcher", TOLD, r"srun: error|slurmstepd: error|mpirun noticed|MPI_ABORT was invoked|PRTE|ORTE"),
    (
        "launcher",
        TOLD,
        r"SignalException|Received SIGTERM|received signal (?:15|SIGTERM)|Child process with PID \d+ term",
    ),
    ("stopped", "a person or the launcher stopped it", r"^KeyboardInterrupt"),
)
"""What a rank prints because another one failed."""

NOTHING = _table(
    NOISE,
    ("noise", "a resource was not released at the end", r"leaked \w+ objects|resource_tracker"),
    (
        "noise",
        "a warning",
        r"\b(?:\w*Warning|WARN(?:ING)?)\b(?!.*\bTraceback)|destroy_process_group\(\) was not called",
    ),
    ("noise", "an error that Python ignored", r"^Exception ignored "),
    ("noise", "a frame of native code", r"^frame #\d+|^Exception raised from "),
)
"""What looks like an error and is none."""

LOUD = _table(
    WEAK,
    ("hang", "its own watchdog stood still", r"watchdog got stuck for|Heartbeat monitor timed out"),
    ("native", "native code ended the program", r"Fatal Python error: Aborted|^terminate called|^Aborted"),
    ("native", "native code failed", r"Fatal Python error: "),
    ("thread", "a thread failed, while the program may have continued", r"^Exception in thread "),
)
"""Ends of a process that something printed before usually explains."""

LINES = (*FAULTS, *CONSEQUENCES, *NOTHING, *LOUD)
SIGN = re.compile(
    "|".join(f"(?:{one.pattern.pattern})" for one in (*FAULTS, *CONSEQUENCES, *LOUD) if one.kind != "import")
)
"""Whether a line outside a traceback can be an error at all."""
INCIDENTAL = frozenset(
    ("Empty", "Full", "StopIteration", "KeyError", "AttributeError", "IndexError", "BlockingIOError", "LookupError")
)
"""Exceptions that a program often catches on its way: at the root of "During handling" they explain little."""
COLLECTIVE_FILES = ("torch/distributed/", "c10d", "horovod/", "deepspeed/comm/", "mpi4py/")
"""Parts of a file name that show that an exception came out of communication."""
ARGUMENTS = frozenset(("ValueError", "TypeError", "NotImplementedError", "ImportError", "ModuleNotFoundError"))
"""Exceptions of the rank's own making, even inside communication."""


def meaning_of(text: str) -> Known | None:
    """Return what a known text means; None for one that is not in the table."""
    return next((one for one in LINES if one.pattern.search(text)), None)
