"""What programs printed in failures that people reported: frameworks, loggers and libraries each have their own way."""

from __future__ import annotations

from bench.failure_texts import CALLS, CAUSE, CONTEXT, TORCH, traceback

LIGHTNING = "/opt/venv/lib/python3.11/site-packages/lightning/pytorch"
LOADER = f"{TORCH}/utils/data/dataloader.py"
SOCKET = (
    "[W1118 22:00:01.100 socket.cpp:767] [c10d] The client socket has failed to connect to [node-0]:29500 "
    "(errno: 97 - Address family not supported by protocol)."
)


def rich_box(error: str) -> list[str]:
    """Return a traceback as rich draws it."""
    width = 98
    code = [
        "/home/user/train.py:212 in main",
        "",
        "  209 │   for batch in loader:",
        "❱ 212 │   │   loss = train_step(model, batch)",
        "  213 │   │   errors.update(loss)",
        "",
        "/home/user/train.py:148 in train_step",
        "",
        "❱ 148 │   loss.backward()",
    ]
    title = f"╭{' Traceback (most recent call last) ':─^{width - 2}}╮"
    return [title, *(f"│ {line:<{width - 4}} │" for line in code), f"╰{'─' * (width - 2)}╯", *error.split("\n")]


def loguru(error: str) -> list[str]:
    """Return a caught error as loguru draws it, with the values of the variables."""
    return [
        (
            "2026-11-18 22:20:00.113 | ERROR    | __main__:<module>:231 - An error has been caught in function "
            "'<module>', process 'MainProcess' (4711), thread 'MainThread' (140192):"
        ),
        "Traceback (most recent call last):",
        "",
        '> File "/home/user/train.py", line 231, in <module>',
        "    main(config)",
        "    │    └ Config(lr=0.0003, error_budget=0.01)",
        "    └ <function main at 0x7f2b8c0>",
        "",
        '  File "/home/user/train.py", line 148, in train_step',
        "    loss = criterion(model(batch['x']), batch['y'])",
        "           │         │     └ {'x': tensor([...])}",
        "           │         └ DistributedDataParallel(...)",
        "           └ CrossEntropyLoss()",
        "",
        *error.split("\n"),
    ]


def json_line(error: str) -> list[str]:
    """Return an error as a logger of JSON prints it: all in one line."""
    trace = "\\n".join(traceback(error)).replace('"', '\\"')
    name = error.partition(":")[0]
    return [
        (
            f'{{"time": "2026-11-18T22:20:00Z", "level": "error", "logger": "trainer", "message": "training failed", '
            f'"error_type": "{name}", "exc_info": "{trace}"}}'
        )
    ]


def group(error: str) -> list[str]:
    """Return an exception group of one exception, as Python 3.11 prints it."""
    return [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/home/user/train.py", line 212, in main',
        "  |     async with asyncio.TaskGroup() as group:",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "/home/user/data/shards.py", line 41, in fetch',
        '    |     return self.index[key]["tokens"]',
        f"    | {error}",
        "    +------------------------------------",
    ]


def lightning(error: str) -> list[str]:
    """Return a traceback through Lightning's trainer."""
    inner = f"{LIGHTNING}/trainer/call.py"
    return traceback(
        error,
        (
            ("train.py", 212, "main", "trainer.fit(model, data)"),
            (f"{LIGHTNING}/trainer/trainer.py", 584, "fit", "call._call_and_handle_interrupt("),
            (inner, 48, "_call_and_handle_interrupt", "return trainer.strategy.launcher.launch(trainer_fn, *args)"),
            (f"{LIGHTNING}/loops/training_epoch_loop.py", 269, "advance", "batch, _, __ = next(data_fetcher)"),
            ("model.py", 93, "training_step", "return self.loss(batch)"),
        ),
    )


def lightning_ends(rank: int, code: int) -> list[str]:
    """Return what Lightning's launcher, which is rank 0 itself, prints when a child of it has ended."""
    return [
        (
            f"[rank: {rank}] Child process with PID 4711 terminated with code {code}. "
            "Forcefully terminating all other processes to avoid zombies 🧟"
        )
    ]


def bus_error() -> list[str]:
    """Return what is printed when a worker of a loader finds /dev/shm full."""
    hint = "It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory"
    killed = f"RuntimeError: DataLoader worker (pid 7579) is killed by signal: Bus error. {hint} limit."
    inner = (LOADER, 1243, "_try_get_data", "data = self._data_queue.get(timeout=timeout)")
    outer = "RuntimeError: DataLoader worker (pid(s) 7579) exited unexpectedly"
    return [
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        *traceback(killed, (inner,)),
        "",
        CAUSE,
        "",
        *traceback(outer, (CALLS[0], inner)),
    ]


def shared_memory_full() -> list[str]:
    """Return what a worker prints that cannot write its batch to /dev/shm."""
    feed = ("/usr/lib/python3.11/multiprocessing/queues.py", 244, "_feed", "obj = _ForkingPickler.dumps(obj)")
    share = (f"{TORCH}/multiprocessing/reductions.py", 569, "reduce_storage", "fd, size = storage._share_fd_cpu_()")
    return traceback(
        "RuntimeError: unable to write to file </torch_2286_2857144775_0>: No space left on device (28)", (feed, share)
    )


def watchdog_of(rank: int, error: str) -> list[str]:
    """Return what NCCL's watchdog prints when it meets an error of the GPU before the main thread does."""
    head = f"[rank{rank}]:[E1118 22:20:00.100 ProcessGroupNCCL.cpp:2068]"
    died = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: "
    more = [
        (
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might "
            "be incorrect."
        ),
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "",
        (
            "Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:42 (most "
            "recent call first):"
        ),
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f2b in /opt/libc10.so)",
        "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::finishedGPUExecutionInternal() const + 0x56 (0x7f2c)",
        "frame #2: c10d::ProcessGroupNCCL::watchdogHandler() + 0x782 (0x7f2c in /opt/libtorch_cuda.so)",
        "",
    ]
    end = ["terminate called after throwing an instance of 'c10::DistBackendError'", f"  what():  {died}{error}"]
    return [f"{head} {died}{error}", *more, *end, *more[:2], "Fatal Python error: Aborted", ""]


def nccl_of_gpu(error: str) -> list[str]:
    """Return the error of a collective whose own GPU failed."""
    return traceback(
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, "
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        f"Last error:\nCuda failure 'CUDA error: {error}'",
        (CALLS[1], (f"{TORCH}/distributed/distributed_c10d.py", 3252, "all_reduce", "work.wait()")),
    )


def nccl_warning(rank: int) -> list[str]:
    """Return what NCCL prints on ranks whose peer went away, before torch raises."""
    return [
        (
            f"node-{rank // 8}:4711:4822 [{rank % 8}] misc/socket.cc:64 NCCL WARN socketProgress: Connection closed by "
            "remote peer node-3.cluster<51234>"
        ),
        f"node-{rank // 8}:4711:4822 [{rank % 8}] transport/net.cc:1297 NCCL WARN Error: [Proxy Service {rank}] failed",
    ]


def old_gpu_memory(device: int) -> list[str]:
    """Return CUDA's error of a full GPU as torch 1.x printed it."""
    return traceback(
        f"RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU {device}; 39.59 GiB total capacity; 37.31 "
        "GiB already allocated; 12.19 MiB free; 37.95 GiB reserved in total by PyTorch) If reserved memory is >> "
        "allocated memory try setting max_split_size_mb to avoid fragmentation."
    )


def workspace() -> list[str]:
    """Return the error of a full GPU as cuBLAS gives it."""
    return traceback("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def bad_alloc() -> list[str]:
    """Return what C++ prints that has no memory."""
    return ["terminate called after throwing an instance of 'std::bad_alloc'", "  what():  std::bad_alloc"]


def safetensors_full() -> list[str]:
    """Return the error of a checkpoint on a full disk, by a library in Rust."""
    inner = ("/opt/venv/lib/python3.11/site-packages/transformers/trainer.py", 3012, "_save_checkpoint", "self._save()")
    error = (
        "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "
        '"No space left on device" })'
    )
    return traceback(error, (CALLS[0], inner))


def megatron_nan(rank: int) -> list[str]:
    """Return Megatron's check of the gradients."""
    inner = ("megatron/core/distributed/param_and_grad_buffer.py", 154, "check_grads", "rerun.validate_result(")
    return traceback(
        f"RuntimeError: Rank {rank}, node node-{rank // 8}, device {rank % 8}, iteration 2400: Unexpected result nan "
        "(message='found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication "
        "collective')",
        (("pretrain_gpt.py", 268, "<module>", "pretrain("), inner),
    )


def port_taken() -> list[str]:
    """Return the error of the store's server whose port is taken."""
    return traceback(
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        (("train.py", 30, "main", 'dist.init_process_group("nccl")'),),
    )


def no_store() -> list[str]:
    """Return what ranks print that cannot reach the store."""
    return traceback(
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to "
        "(node-0, 29500).",
        (("train.py", 30, "main", 'dist.init_process_group("nccl")'),),
    )


def barrier(rank: int) -> list[str]:
    """Return what gloo's barrier says about a rank that did not come."""
    file = "/pytorch/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp:2788"
    return traceback(
        f"RuntimeError: [{file}] [Rank 0]: Ranks {rank} failed to pass monitoredBarrier in 600000 ms",
        (CALLS[0], (f"{TORCH}/distributed/distributed_c10d.py", 4913, "monitored_barrier", "return group_to_use(")),
    )


def heartbeat(rank: int) -> list[str]:
    """Return what NCCL's heartbeat monitor prints on a rank whose own watchdog is stuck."""
    head = f"[rank{rank}]:[F1118 22:28:00.100 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    return [
        (
            f"{head} [PG ID 0 PG GUID 0(default_pg) Rank {rank}] ProcessGroupNCCL's watchdog got stuck for 480 seconds "
            "without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA API "
            "(e.g., CudaEventDestroy) hang blocking the watchdog, and could be triggered by another thread holding the "
            "GIL inside a CUDA api"
        ),
        "Fatal Python error: Aborted",
    ]


def pin_memory() -> list[str]:
    """Return what is printed when the thread that pins memory dies of a full GPU's host memory."""
    loop = (f"{TORCH}/utils/data/_utils/pin_memory.py", 59, "_pin_memory_loop", "do_one_step()")
    return [
        "Exception in thread Thread-5 (_pin_memory_loop):",
        *traceback("RuntimeError: CUDA error: invalid argument", (loop,)),
        *traceback("RuntimeError: Pin memory thread exited unexpectedly", (CALLS[0], (LOADER, 1274, "_get_data", "x"))),
    ]


def ignored() -> list[str]:
    """Return what Python prints at an exit about clean-up that failed."""
    return [
        "Exception ignored in atexit callback: <function _exit_function at 0x7f1>",
        *traceback("BrokenPipeError: [Errno 32] Broken pipe", (CALLS[2],)),
        "Exception ignored in: <function DataLoader.__del__ at 0x7f2>",
        *traceback("AttributeError: 'NoneType' object has no attribute 'is_alive'", (CALLS[2],)),
    ]


def wandb_summary() -> list[str]:
    """Return what W&B prints at the end of a process, also of one that failed."""
    history = [f"wandb:   metric/{at} {'▁▂▃▅▆▇█' * 4}" for at in range(24)]
    return [
        "wandb: ERROR Network error (ReadTimeout), entering retry loop.",
        "wandb: Run history:",
        *history,
        "wandb: 🚀 View run swift-sun-12 at: https://wandb.ai/team/project/runs/abc",
        "wandb: Find logs at: ./wandb/run-20261118_220000-abc/logs",
    ]


def skipped_sample() -> list[str]:
    """Return an error that a program logs with its traceback, and survives, again and again."""
    return [
        "2026-11-18 22:19:59,113 ERROR data.py:88 cannot decode sample 8812, it is left out",
        *traceback("OSError: image file is truncated (12 bytes not processed)", CALLS[3:4]),
    ]


def refused() -> list[str]:
    """Return a chain of exceptions that a program survived at its start."""
    return [
        "WARNING: the metrics server does not answer, trying again in 5 s",
        *traceback("ConnectionRefusedError: [Errno 111] Connection refused"),
        "",
        CONTEXT,
        "",
        *traceback("requests.exceptions.ConnectionError: HTTPConnectionPool(host='metrics', port=80): Max retries"),
    ]


def deepspeed_ends(pids: list[int], code: int) -> list[str]:
    """Return what DeepSpeed's launcher prints when a rank has ended."""
    head = "[2026-11-18 22:20:01,210]"
    killing = [f"{head} [INFO] [launch.py:335:sigkill_handler] Killing subprocess {pid}" for pid in pids]
    command = "['/opt/venv/bin/python', '-u', 'train.py', '--local_rank=7', '--deepspeed', 'zero3.json']"
    return [*killing, f"{head} [ERROR] [launch.py:341:sigkill_handler] {command} exits with return code = {code}"]


def slurm_kills() -> list[str]:
    """Return what Slurm prints when a process was killed for memory."""
    return [
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7122.0. Some of the step tasks have been OOM Killed.",
        "srun: error: node-5: task 5: Out Of Memory",
    ]
