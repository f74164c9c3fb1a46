"""What to do about each finding: the one place for the advice that diagnosis, alerts, callbacks and reports print.

A key is the kind of a finding, or `kind/cause` if the cause is known; `remedy` falls back from the second to the first.
The caller fills in the fields in braces. `PLAIN` has a default for each field of a kind's own text, so that the text of
a kind can always be printed. Alerts that are not findings of a run, such as a lost GPU, have their text in `ALARMS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.endings import crash_kind

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN = {"at": "that step", "who": "the late rank", "every": "so often", "why": "heat or power"}
"""Texts for unknown fields: `at` is the step, `who` the rank."""


def _table(text: str) -> dict[str, str]:
    """Return the texts by their keys: a key starts a line, and the lines of its text after the first are indented."""
    entries = (line.partition(": ") for line in text.strip().replace("\n    ", " ").splitlines())
    return {key: words for key, _, words in entries}


REMEDIES = _table("""
input_bound: load batches ahead in worker processes (DataLoader: num_workers, persistent_workers=True, pin_memory=True),
    up to the number of free CPUs; or make a batch cheaper: precompute or cache work that every epoch repeats
input_bound/no_workers: the training process builds its own batches: let workers do it while the model computes
    (DataLoader(num_workers=…, persistent_workers=True, pin_memory=True), up to the number of free CPUs)
input_bound/slow_workers: the loader's workers cannot keep up: add workers if CPUs are free, otherwise make a batch
    cheaper (decode and resize once beforehand, read larger records, transform on the device)
input_bound/in_process: the training process builds its own batches: DataLoader(num_workers={workers},
    persistent_workers=True) builds them while the model computes; precompute what does not change between epochs
input_bound/workers: a worker needs {load} per batch ({workers} now), the model only {rest}: num_workers={wanted} would
    keep up if CPUs and disks allow; or make a batch cheaper (decode and resize once beforehand, read larger records)
input_bound/more_and_cheaper: a worker needs {load} per batch ({workers} now), the model only {rest}: keeping up would
    take {wanted} workers; use {allowed}, the most this machine can feed, and make a batch cheaper (decode and resize
    once beforehand, read larger records, transform on the device)
input_bound/cheaper: a worker needs {load} per batch ({workers} now), the model only {rest}; more workers do not help,
    because its share of the CPUs ({processors}) is fully used: make a batch cheaper (decode and resize once beforehand,
    read larger records, transform on the device), or add CPUs
input_bound/transform: transforms take most of the time of a batch: run fixed transforms once and store the result, use
    faster ones (torchvision.transforms.v2 on tensors, on the device), or add workers
input_bound/collate: collating takes most of the time of a batch: return tensors of one size from the dataset, or
    collate with one torch.stack or pad_sequence instead of Python loops
input_bound/disk: the disk is the bottleneck: read large files sequentially (tar shards, WebDataset, Parquet), copy the
    data to a local disk or into memory, or compress it
input_bound/start: the workers restart in every epoch: DataLoader(persistent_workers=True) keeps them alive
input_bound/stretch: loading kept up before and after: check what was read from step {first} to {last} (a cold cache, a
    shared file system under load, larger samples); copy the data to a local disk, or load further ahead (num_workers,
    prefetch_factor)
host_bound/stretch: the same program was faster in other steps: check what it does only from step {first} to {last},
    such as writing a report, computing a metric or building a cache; `stepscope profile RUN` shows it while it happens
copy_bound: use pin_memory=True in the DataLoader and .to(device, non_blocking=True), so that copies overlap with
    compute; move fewer, larger tensors, convert types on the device, and keep results there
host_bound: find the Python code between the passes with `stepscope profile RUN`; move per-sample loops, .item(), .cpu()
    and NumPy conversions out of the step, or run them every N steps
host_bound/place: most of the time is spent at {place}: move it out of the step, run it every N steps, or rewrite it as
    operations on whole tensors
host_bound/small_operations: the passes consist of {operations} tiny operations of {each} each, mostly launch overhead:
    use whole-sequence modules instead of loops over time steps, larger batches, or torch.compile
host_bound/small_updates: let the optimizer update its {tensors} tensors together: fused=True or foreach=True; a larger
    batch with fewer updates, and fewer, wider layers also help
compute_bound: the device computes nearly all the time; to go faster, use lower precision (bfloat16 autocast),
    torch.compile, a larger batch, a smaller model or more devices
compute_bound/threads: torch uses {threads} of the {processors} CPUs that this rank has to itself:
    torch.set_num_threads({processors}), or OMP_NUM_THREADS={processors}
compute_bound/precision: the model computes in float64: use float32 (torch.set_default_dtype, model.float()), which
    takes about half the time, or bfloat16 autocast, which takes less
compute_bound/forward: the forward pass takes most of the time: `stepscope profile RUN` lists the operations; fuse them
    (torch.compile), use scaled_dot_product_attention, channels_last and bfloat16
compute_bound/backward: the backward pass takes most of the time: freeze layers that need no training, use torch.compile
    and bfloat16. Gradient checkpointing saves memory, not time, because it computes activations twice: use it if the
    freed memory allows a larger batch, and recompute less if memory is left
compute_bound/optimizer: the optimizer takes most of the time: use fused=True or foreach=True, a larger batch with fewer
    updates, or an optimizer with less state
communication_bound: accumulate gradients over several batches (DDP's no_sync()), compress them (bfloat16 communication
    hook), use larger buckets (bucket_cap_mb), and check which network interface is used (NCCL_SOCKET_IFNAME)
checkpoint_heavy: save less often, save only what you need, and save in the background
    (torch.distributed.checkpoint.async_save, or a copy to the host and a thread)
evaluation_heavy: evaluate less often or on a fixed subset; use torch.inference_mode(), a larger batch and loader
    workers for evaluation too
compile_heavy: the model is recompiled repeatedly: find out why with TORCH_LOGS=recompiles; mark changing shapes as
    dynamic (torch.compile(dynamic=True), mark_dynamic), pad to a few lengths, keep Python numbers out of the graph
logging_heavy: log every N steps, combine several values into one call, and write files in the background
gc_pauses: call gc.freeze() once the model and the data are loaded, remove gc.collect() from the loop, keep fewer small
    Python objects (arrays instead of lists of dicts), or run the collector yourself between epochs
periodic_stall: check what your program does every {every}: saving, flushing, uploading, opening the next file; do it in
    the background, in smaller parts, or less often
straggler: check {who}: its data, its device (`nvidia-smi -q -d PERFORMANCE,ECC`), and other jobs on its host; all other
    ranks wait for it; move it to another machine if it stays late
straggler/data: {who} waits for its data while the other ranks do not: check its shard of the data, its disk or mount
    and its loader workers (`stepscope show RUN` has the disk of its node); balance the shards and their storage
straggler/compute: check the device and the clock of {who} (`nvidia-smi -q -d PERFORMANCE,CLOCK,ECC`), and which CPUs
    and NUMA node its process is bound to; if it stays slow after a restart, leave its node out
straggler/numa: check {who}: other programs on its CPUs and their use of its memory (numastat, `numactl -H`), memory
    errors (`edac-util`, dmesg), and that its ranks use memory and GPUs of their own NUMA node (numactl
    --cpunodebind=N --membind=N; nvidia-smi topo -m)
straggler/experts: {who} gets more tokens than the other experts: use a balancing loss or bias for the router, a
    capacity limit, or place busy experts apart
straggler/other_programs: find the program that runs on the CPUs of {who} (`top -H`, `ps -eo psr,pcpu,pid,args`), stop
    it or move it, and bind every rank to CPUs of its own (numactl, taskset, --cpu-bind)
straggler/heat: check fans, air flow and neighbouring devices of {who}; until its GPU is cool, leave its node out or
    lower the power limit of all GPUs (nvidia-smi -pl), so that they run at one speed
straggler/power: check the power supply, the power limit and the cables of the GPU of {who}: `nvidia-smi -q -d
    PERFORMANCE,POWER` shows the reason
straggler/clock: check the clocks of {who}: `nvidia-smi -q -d CLOCK,PERFORMANCE`; reset application clocks (nvidia-smi
    -rac), or give all GPUs the same (nvidia-smi -lgc)
straggler/cpu_clock: check the CPUs of the node of {who}: heat and fans (`sensors`, dmesg), the governor (cpupower
    frequency-info; performance), power limits (turbostat), and its BIOS settings; compare with another node
straggler/host: look at the Python code that only {who} runs: `stepscope profile RUN` shows it; log and save less often
    or in the background, and call gc.freeze() once the model is loaded
straggler/link: check the network of {who}: its cables, link speed and errors (ibstat, ethtool -S), and which interface
    it uses (NCCL_SOCKET_IFNAME, NCCL_IB_HCA); compare with NCCL_DEBUG=INFO on another rank
straggler/stage: {who} has more work than the other stages: give it fewer layers; the last stage also has the head and
    the loss, the first stage the embedding
straggler/worker: check the ranks of {who}: their device (`nvidia-smi -q -d PERFORMANCE,ECC`), their host and other jobs
    on it; the same stage of other replicas is faster, so the model is not the cause
straggler/replica: check the machines of {who}: their devices, their network and other jobs on them; also check whether
    its share of the data is harder
straggler/uneven: give every rank the same amount of work: {who} gets more tokens or samples than the others; sort or
    pack by length, split batches by tokens, or move layers or experts
straggler/gc: let all ranks collect garbage at the same step: gc.disable(), gc.freeze() once the model is loaded, and
    gc.collect() every few hundred steps; keep fewer small Python objects alive
straggler/work: micro-batches differ in their amount of work: pack sequences so that every micro-batch and every replica
    has about the same sum of squared lengths, or sort them by length first
cpu_throttled: the cgroup's CPU quota throttles the training: raise the limit (cpu.max, --cpus, resources.limits.cpu),
    or use only as many threads and workers as it allows
cpu_throttled/own: the training's own processes and threads compete for its CPUs: use fewer loader workers or threads
    (torch.set_num_threads, OMP_NUM_THREADS) than CPUs, and stop processes that are not needed
gpu_throttled: the GPU is slowed down by {why}: `nvidia-smi -q -d PERFORMANCE` shows the reason; improve its cooling,
    check the power supply, or raise its power limit (nvidia-smi -pl)
gpu_throttled/heat: the GPU is too hot: check fans, air flow and neighbouring devices; until then, lower its power limit
    (nvidia-smi -pl) to keep the clocks steady
gpu_throttled/power: the GPU is at its power limit: raise it if cooling and power supply allow (nvidia-smi -pl), or
    spread the load
gpu_throttled/supply: the machine does not supply the power that the GPU asks for: check the power supply, the cables
    and the limit of the rack; `nvidia-smi -q -d PERFORMANCE` shows the reason
gpu_idle: the GPU is idle: look at data loading, host code and communication first; then try a larger batch, CUDA graphs
    or torch.compile
gpu_idle/unused: the model runs on the CPU and the GPU is unused: call model.to('cuda'), and .to('cuda',
    non_blocking=True) on every batch; check torch.cuda.is_available()
swapping: memory is short: use fewer loader workers, a smaller batch or smaller caches, or add memory
padding_waste: sort samples into batches of similar length (bucketing), pad to the longest sample of the batch instead
    of a fixed length, or pack several sequences into one
memory_leak: look for tensors that keep their graph (append loss.item() or loss.detach() to lists, not loss), unbounded
    caches, and workers that keep data
fragmentation: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, use few batch sizes, and free large tensors before
    you allocate larger ones
disk_full: keep fewer checkpoints and runs (`stepscope gc`), or move them, before the next checkpoint fails
oom: use a smaller batch with gradient accumulation, activation checkpointing or a narrower dtype; if much memory is
    reserved but free, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
oom/host: use fewer loader workers, a smaller prefetch_factor, smaller caches and memory-mapped data; or give the
    container or machine more memory
divergence: lower the learning rate, warm it up, clip gradients (clip_grad_norm_); restart from a checkpoint before {at}
loss_spike: look at the batch of {at} and at the gradient norm before it; clip gradients; if the loss does not recover,
    restart from the checkpoint before it, skipping that batch or with a lower learning rate
plateau: check that labels match their inputs, that gradients reach all layers and that the optimizer has the model's
    parameters; then try learning rates 10 times higher and lower on a few batches, which any model should fit
non_finite: run once under torch.autograd.detect_anomaly() from a checkpoint before {at}; look for logarithms, divisions
    and roots of 0, lower the learning rate, clip gradients, and prefer bfloat16 to float16
non_finite/gradient: look at the loss and the batch of {at}; run once under torch.autograd.detect_anomaly()
exploding_gradients: clip with torch.nn.utils.clip_grad_norm_, lower the learning rate, warm up longer, and check the
    batch of {at}
vanishing_gradients: check initialization, normalization and residual paths; under float16 use a GradScaler or bfloat16
dead_gradients: check that the layer's output reaches the loss: no detach, no frozen or unused branch, no dead ReLU
learning_rate: check the schedule: its total number of steps, and one call of scheduler.step() per update
learning_rate/zero: the schedule has reduced the learning rate to (nearly) 0 while the training continues: set its real
    number of steps, or stop there
learning_rate/jump: check the milestones and what a resumed run sets: a learning rate may rise slowly (warm-up), not
    abruptly; go back to a checkpoint before it
learning_rate/grows: the schedule keeps raising the learning rate: check the scheduler's factor (gamma above 1?) and its
    total number of steps; restart from a checkpoint before {at}, with the rate of that step as the maximum
learning_rate/high: lower the learning rate by a factor of 3 to 10 until the loss falls; check its unit and the
    schedule: Adam and similar optimizers diverge far below 1
overfitting: stop at the best evaluation, at {at}; use more data or augmentation, dropout, weight decay or a smaller
    model
dead_worker: check the exit code: -9 and 'Bus error' mean memory (fewer workers, a larger /dev/shm), others an error in
    the dataset; run with num_workers=0 to see its traceback
hang: `stepscope show RUN` has the stacks at the point where it stopped; ranks that wait in a collective wait for the
    rank that is not in it
hang/finished: measure what runs after the last step: `with run.phase("evaluation")`, or "checkpoint"; then it counts as
    that, and is no pause
hang/silent: check whether its process still runs; `py-spy dump --pid PID` shows where it stands. A training that is
    started with `stepscope run` records its stacks when it hangs
hang/never_arrived: look at the line where the named rank stands: its data, its branch of the code, its input size;
    ranks with different numbers of batches need torch.distributed.algorithms.join; then resume from the last checkpoint
hang/desynchronised: make all ranks call the same collectives in the same order with the same shapes: look for
    conditions on the rank or on data around the named lines; TORCH_DISTRIBUTED_DEBUG=DETAIL reports the first mismatch
hang/collective_stuck: check network and devices of the ranks in that collective: link errors (ibstat, ethtool -S), Xid
    messages in dmesg, `nvidia-smi`, NCCL_DEBUG=INFO; test with nccl-tests, and leave out nodes until it passes
hang/dead_rank: find out why that rank ended (`stepscope show RUN`, its console, dmesg); the others wait for it until
    their timeout: end the job, and resume from the last checkpoint
hang/disk: check the file system of that node (df, mount, dmesg, the NFS or Lustre server); copy data and checkpoints to
    a local disk; a process in state D cannot be killed until the file system answers
hang/pipe: find the other end of the pipe: `ls -l /proc/PID/fd` on that node; a child process that was killed or waits
    itself never writes to it
hang/network: check the server that this rank talks to, and set a timeout for its requests
hang/lock: find the thread or process that holds the lock: `py-spy dump --pid PID` on that node shows all threads; after
    a fork, locks of other threads are never released (use spawn or forkserver)
hang/gil: native code keeps the GIL: `py-spy dump --native --pid PID` shows the function; run it in a process of its
    own, or release the GIL in it
hang/debugger: a debugger or a breakpoint() holds this rank: continue or detach it, and take breakpoints out of the code
hang/stopped: the process is stopped by a signal (SIGSTOP, SIGTSTP, SIGTTIN): find out who sent it; `kill -CONT PID` on
    that node continues it
node_gone: the scheduler took these ranks away, and nothing is wrong with the program: queue the job again to go on from
    the last checkpoint; to go on with fewer nodes, launch with torchrun --nnodes MIN:MAX and save checkpoints often
node_gone/left: give all ranks the same number of steps: drop the last incomplete batches, or wrap the loop in
    torch.distributed.algorithms.join; then resume from the last checkpoint
crash: the traceback is in `stepscope show RUN`; resume from the last checkpoint once the cause is fixed
crash/exit: the program set this exit code itself: its output says why; resume from the last checkpoint once that is
    fixed
crash/silent: look at what the ranks that reported nothing printed last (`stepscope logs RUN --last 50`) and at the
    kernel log of their nodes; then resume from the last checkpoint
crash/SIGKILL: SIGKILL leaves no traceback: find out who sent it. If memory ran out, look at the kernel log (dmesg) and
    the limits of the container; if a time limit was hit, ask the scheduler; then resume from the last checkpoint
crash/signal: another process sent this signal: a scheduler, a launcher that lost another rank, a closed terminal
    (SIGHUP: use tmux, nohup or a job queue) or a person; resume from the last checkpoint
crash/native: native code failed, below Python: run with PYTHONFAULTHANDLER=1 to see the line; SIGBUS usually means that
    /dev/shm is full; resume from the last checkpoint
crash/unseen: the end was not observed: check the logs of the machine, the container and the scheduler for that time,
    memory first; resume from the last checkpoint
""")

ALARMS = _table("""
anomaly: check what else changed at {at}: the data, the learning rate, the gradient norm; if nothing is wrong,
    `watcher.analysis.anomaly: false` turns the rule off
training_speed: `stepscope diagnose RUN` shows which phase grew; look for other jobs on the machine, throttled GPUs and
    a slow file system
cpu_usage: use fewer or lighter loader workers, with OMP_NUM_THREADS=1; look for other jobs on the machine
preempted: the scheduler took the job: queue it again to continue from the last checkpoint
gpu_lost: drain the node, and reset or replace the GPU
gpu_xid: look up the Xid in NVIDIA's table; drain the node if it happens again
gpu_ecc: results since then may be wrong: go back to the checkpoint before it, and reset the GPU
gpu_driver_hung: look at dmesg for driver errors; the node may need a reset
sampler_blind: `stepscope doctor` shows what is missing; alerts on these metrics cannot fire until it is back
rows_dropped: log fewer values, or set recorder.high_frequency; the metrics stepscope/* count the lost rows
sink_behind: `stepscope doctor` checks the sink, `stepscope show RUN` says what it answers; nothing is lost, its rows
    wait in the run
sink_refused: the rows and the sink's reasons are in sinks/*/*.refused.jsonl of the run; the run itself has all rows
""")
"""What to do about alerts that are not findings of a run, by the name of their rule."""


def crash_remedy(state: str, cause: str) -> str:
    """Return what to do about a run that ended in this state."""
    return remedy("oom", "host") if state == "oom-killed" else remedy("crash", crash_kind(state, cause))


def remedy(kind: str, cause: str = "", **fields: object) -> str:
    """Return what to do about a finding, with its fields filled in; the text of the kind if a field is missing."""
    known = {**spoken(fields), **fields}
    for key in (f"{kind}/{cause}", kind):
        text = REMEDIES.get(key) or ALARMS.get(key)
        if text is None:
            continue
        try:
            return text.format_map(known)
        except KeyError:
            continue  # a field is missing: `PLAIN` has every field of the text of the kind
    return ""


def spoken(facts: Mapping[str, object]) -> dict[str, str]:
    """Return the fields of remedies for the facts of a finding: `at` for its `step`, `who` for its `rank`."""
    step, rank = facts.get("step"), facts.get("rank")
    found = {"at": f"step {step}"} if isinstance(step, int) else {}
    return {**PLAIN, **found, **({"who": f"rank {rank}"} if isinstance(rank, int) else {})}
