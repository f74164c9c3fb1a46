"""What programs print when one of many ranks fails, as torch 2.13, NCCL, gloo, torchrun and Python print it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
CALLS = (
    ("train.py", 212, "main", "loss = train_step(model, batch)"),
    ("train.py", 148, "train_step", "loss.backward()"),
    ("engine/loop.py", 77, "fit", "self.run_epoch(epoch)"),
    ("data/shards.py", 41, "__getitem__", 'return self.index[key]["tokens"]'),
    ("models/attention.py", 93, "forward", "scores = q @ k.transpose(-1, -2)"),
)
ERRORS = (
    "KeyError: 'batch_17'",
    "RuntimeError: shape '[4, 512]' is invalid for input of size 1024",
    "ValueError: Expected input batch_size (32) to match target batch_size (31).",
    "AssertionError: loss is not finite at step 1200",
    "ZeroDivisionError: division by zero",
    "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x80 in position 11: invalid start byte",
    "IndexError: list index out of range",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/shards/00917.tar'",
    "torch.utils._pytree.LeafError: cannot flatten a batch of None",
    "my_project.data.BadBatch: sample 881 has no label",
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "TypeError: forward() got an unexpected keyword argument 'mask'",
)
WARNINGS = (
    "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py:61: FutureWarning: pynvml is deprecated.",
    "[W1118 22:19:58.123456789 ProcessGroupNCCL.cpp:1250] Warning: WARNING: destroy_process_group() was not called",
    "WARNING:root:retry 1 after error: HTTP 503 from the object store",
    "UserWarning: Error handling of the tokenizer is set to 'ignore'",
    "INFO: 0 errors, 0 failed shards, error rate 0.000",
    "[rank0]:[W1118 22:01:05.0000 Utils.hpp:137] Warning: Environment variable NCCL_ASYNC_ERROR_HANDLING is deprecated",
)
UNKNOWN_LOSSES = (
    "RuntimeError: [/pytorch/torch/csrc/distributed/c10d/ProcessGroupUCC.cpp:530] [Rank 3][ERROR] ucc: task failed",
    "RuntimeError: oneCCL: atl_ofi.cpp:1010 check_ep: EXCEPTION: endpoint is down",
    "RuntimeError: HCCL function error: HcclAllReduce, error code is 9",
    "torch.distributed.DistError: the other side went away",
)
"""What ranks print that lost a peer through libraries that are in no table of ours."""
CAUSE = "The above exception was the direct cause of the following exception:"
CONTEXT = "During handling of the above exception, another exception occurred:"


def traceback(error: str, calls: Sequence[tuple[str, int, str, str]] = CALLS[:2]) -> list[str]:
    """Return a traceback as Python 3.11 prints it."""
    lines = ["Traceback (most recent call last):"]
    for file, line, function, code in calls:
        path = file if file.startswith("/") else f"/home/user/{file}"
        lines += [f'  File "{path}", line {line}, in {function}', f"    {code}", f"    {'^' * len(code)}"]
    return [*lines, *error.split("\n")]


def chained(first: str, second: str, sentence: str = CAUSE) -> list[str]:
    """Return a chain of two exceptions."""
    return [*traceback(first, CALLS[3:4]), "", sentence, "", *traceback(second)]


def in_collective(error: str) -> list[str]:
    """Return a traceback out of `all_reduce`."""
    inner = (f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce", "work.wait()")
    wrapper = (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper", "return func(*args, **kwargs)")
    return traceback(error, (CALLS[1], wrapper, inner))


def nccl_remote() -> list[str]:
    """Return what a rank prints whose peer went away, with NCCL."""
    return in_collective(
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, "
        "remote process exited or there was a network error, NCCL version 2.27.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketProgress: Connection closed by remote peer node-3.cluster<51234>"
    )


def gloo_closed(verb: str = "Connection closed by peer") -> list[str]:
    """Return what a rank prints whose peer went away, with gloo."""
    return in_collective(
        "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
        f"{verb} [10.0.3.17]:2486. This is typically caused by a remote worker crashing. Check the logs of the peers."
    )


def gloo_timeout() -> list[str]:
    """Return what a rank prints that waited too long, with gloo."""
    return in_collective(
        "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] "
        "Timed out waiting 600000ms for recv operation to complete"
    )


def watchdog(rank: int) -> list[str]:
    """Return what NCCL's watchdog prints before it aborts the process."""
    work = (
        "WorkNCCL(SeqNum=8312, OpType=ALLREDUCE, NumelIn=25557032, NumelOut=25557032, Timeout(ms)=600000) "
        "ran for 600029 milliseconds before timing out."
    )
    head, group = f"[rank{rank}]:[E1118 22:30:57.100", f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    died = f"{group} Process group watchdog thread terminated with exception: [Rank {rank}] Watchdog caught collective"
    died += f" operation timeout: {work}"
    return [
        f"{head} ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog caught collective operation timeout: {work}",
        f"{head} ProcessGroupNCCL.cpp:2241] {group}  failure detected by watchdog at work sequence id: 8312",
        (
            f"{head} ProcessGroupNCCL.cpp:744] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the "
            "asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data."
        ),
        (
            f"{head} ProcessGroupNCCL.cpp:758] [Rank {rank}] To avoid data inconsistency, we are taking the entire "
            "process down."
        ),
        f"{head} ProcessGroupNCCL.cpp:2068] {died}",
        (
            "Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:688 (most "
            "recent call first):"
        ),
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f2b in /opt/libc10.so)",
        "frame #1: c10d::ProcessGroupNCCL::Watchdog::run() + 0x1b3 (0x7f2c in /opt/libtorch_cuda.so)",
        "",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  {died}",
        "Fatal Python error: Aborted",
        "",
        "Thread 0x00007fc997607b80 (most recent call first):",
        '  File "/home/user/train.py", line 148 in train_step',
    ]


def store_gone(rank: int) -> list[str]:
    """Return what the store's clients print after its server is gone."""
    head = f"[rank{rank}]:[W1118 22:30:57.200"
    return [
        (f"{head} TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=4, remote=[node-0]:29500): Broken pipe"),
        (
            f"{head} ProcessGroupNCCL.cpp:1783] [PG ID 0 PG GUID 0 Rank {rank}] Failed to check the 'should dump' flag "
            "on TCPStore, (maybe TCPStore server has shut down too early), with error: Broken pipe"
        ),
    ]


def signalled() -> list[str]:
    """Return what a rank prints that handles SIGTERM as torch's elastic agent does."""
    error = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15"
    return traceback(error, ((f"{TORCH}/distributed/elastic/multiprocessing/api.py", 85, "_terminate", "raise x"),))


def gpu_memory(device: int) -> list[str]:
    """Return CUDA's error of a full GPU."""
    return traceback(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU {device} has a total capacity of "
        "79.15 GiB of which 1.06 GiB is free. Process 71 has 78.08 GiB memory in use. Of the memory 74.10 GiB "
        "is allocated by PyTorch, and 1.92 GiB is reserved by PyTorch but unallocated."
    )


def device_assert() -> list[str]:
    """Return the error of a check in a GPU kernel, which Python sees at a later call."""
    kernel = (
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1369: indexSelectSmallIndex: block: [0,0,0], thread: [{},0,0]"
    )
    return [
        *(f"{kernel.format(thread)} Assertion `srcIndex < srcSelectDimSize` failed." for thread in range(4)),
        *traceback(
            "torch.AcceleratorError: CUDA error: device-side assert triggered\n"
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might "
            "be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
        ),
    ]


def ecc() -> list[str]:
    """Return the error of a GPU whose memory is damaged."""
    return traceback("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")


def segfault() -> list[str]:
    """Return what faulthandler prints."""
    return [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007fc997607b80 (most recent call first):",
        '  File "/home/user/models/attention.py", line 93 in forward',
        '  File "/home/user/train.py", line 148 in train_step',
        "",
        "Extension modules: numpy._core._multiarray_umath, torch._C (total: 22)",
    ]


def disk_full() -> list[str]:
    """Return the error of a checkpoint on a full disk."""
    inner = (f"{TORCH}/serialization.py", 966, "save", "_save(obj, opened_zipfile, pickle_module)")
    second = "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 4096 vs 3988"
    return [
        *traceback("OSError: [Errno 28] No space left on device", (CALLS[0], inner)),
        "",
        CONTEXT,
        "",
        *traceback(second, (CALLS[0], inner)),
    ]


def worker_exception(error: str) -> list[str]:
    """Return an exception that a data loader passes on from its worker."""
    inner = [f"  {line}" if line.startswith(" ") else line for line in traceback(error, CALLS[3:4])[1:]]
    told = f"{error.partition(':')[0]}: Caught {error.partition(':')[0]} in DataLoader worker process 2."
    return [*traceback(told, CALLS[:1]), "Original Traceback (most recent call last):", *inner]


def worker_killed() -> list[str]:
    """Return what the main process prints when a worker of its loader was killed."""
    killed = "RuntimeError: DataLoader worker (pid 12378) is killed by signal: Killed. "
    inner = (f"{TORCH}/utils/data/dataloader.py", 1291, "_try_get_data", "data = self._data_queue.get(timeout=timeout)")
    outer = "RuntimeError: DataLoader worker (pid(s) 12378) exited unexpectedly"
    return [*traceback(killed, (inner,)), "", CAUSE, "", *traceback(outer, (CALLS[0], inner))]


def caught() -> list[str]:
    """Return an error that the program logs and survives."""
    return [
        "ERROR:data.shards:cannot read shard 00931, trying again",
        *traceback("OSError: [Errno 5] Input/output error"),
    ]


def table(script: str, rank: int, code: int, local: int) -> list[str]:
    """Return the end of torchrun's report, which names the first failure that it observed."""
    return [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        f"{script} FAILED",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-18_22:20:02",
        "  host      : localhost",
        f"  rank      : {rank} (local_rank: {local})",
        f"  exitcode  : {code} (pid: 12157) ",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "=" * 60,
    ]


def any_of(random: np.random.Generator, texts: Sequence[str]) -> str:
    """Return one of some texts."""
    return texts[int(random.integers(len(texts)))]
