"""What to do about each finding: one place for the words that diagnosis, alerts, callbacks and reports print.

A key is the kind of a finding, or `kind/cause` where the cause is known; `remedy` falls back from the second to the
first. Fields in braces are filled in by whoever tells the finding. `PLAIN` has a word for each field of a kind's own
text, for whoever does not know it: so the text of a kind can always be told. Alerts on what is no finding of a run,
such as a lost GPU, have theirs in `ALARMS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.endings import crash_kind

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN = {"at": "that step", "who": "the late rank", "every": "so often", "why": "heat or power"}
"""What is said for a field that is not known: `at` is the step, `who` the rank."""

REMEDIES: dict[str, str] = {
    "input_bound": (
        "let worker processes load ahead (DataLoader's num_workers, persistent_workers=True, pin_memory=True), as many "
        "as there are processors to spare; make a batch cheaper: prepare or cache once what every epoch does again"
    ),
    "input_bound/no_workers": (
        "the training process makes its batches itself: let workers do it while the model computes "
        "(DataLoader(num_workers=…, persistent_workers=True, pin_memory=True), up to the processors that are free)"
    ),
    "input_bound/slow_workers": (
        "the loader's workers do not keep up: give it more of them where processors are free, else make a batch "
        "cheaper (decode and resize once beforehand, read larger records, transform on the device)"
    ),
    "input_bound/in_process": (
        "the batches are made in the training process itself: DataLoader(num_workers={workers}, "
        "persistent_workers=True) makes them while the model computes; what is the same in every epoch, prepare once"
    ),
    "input_bound/workers": (
        "a batch takes {load} in a worker ({workers} now) and the model only {rest}: num_workers={wanted} would keep "
        "up where processors and disks allow; or make a batch cheaper (decode and resize once beforehand, read larger "
        "records)"
    ),
    "input_bound/more_and_cheaper": (
        "a batch takes {load} in a worker ({workers} now) and the model only {rest}: {wanted} workers would be "
        "needed to keep up; take {allowed}, as many as this machine feeds, and make a batch cheaper (decode and resize "
        "once beforehand, read larger records, transform on the device)"
    ),
    "input_bound/cheaper": (
        "a batch takes {load} in a worker ({workers} now) and the model only {rest}; more workers do not help, as its "
        "share of the processors ({processors}) is in use: make a batch cheaper (decode and resize once beforehand, "
        "read larger records, transform on the device), or add processors"
    ),
    "input_bound/transform": (
        "most of a batch's time goes into transforms: do the fixed ones once and store the result, use faster ones "
        "(torchvision.transforms.v2 on tensors, on the device), or take more workers"
    ),
    "input_bound/collate": (
        "most of a batch's time goes into putting samples together: return tensors of one size from the dataset, or "
        "collate with one torch.stack / pad_sequence instead of Python loops"
    ),
    "input_bound/disk": (
        "the disk is the limit: read larger files in order (tar shards, WebDataset, Parquet), copy the data to a "
        "local disk or to memory, or compress it"
    ),
    "input_bound/start": (
        "the workers are started anew in every epoch: DataLoader(persistent_workers=True) keeps them"
    ),
    "input_bound/stretch": (
        "loading kept up before and after: look at what was read from step {first} to {last} (a cold cache, a file "
        "system that others used, larger samples); copy the data to a local disk, or load further ahead "
        "(num_workers, prefetch_factor)"
    ),
    "host_bound/stretch": (
        "the same program was faster in other steps: look at what it does from step {first} to {last} only, such as "
        "a report, a metric or a cache that is built; `stepscope profile RUN` shows it while it happens"
    ),
    "copy_bound": (
        "pin_memory=True in the DataLoader and .to(device, non_blocking=True) let copies overlap with computing; "
        "move fewer, larger tensors, convert types on the device, and leave results there"
    ),
    "host_bound": (
        "find what runs between the passes: `stepscope profile RUN` shows it; take per-sample Python loops, "
        ".item(), .cpu() and conversions to NumPy out of the step, or do them every N steps"
    ),
    "host_bound/place": (
        "most of it is spent at {place}: take it out of the step, do it every N steps, or write it as operations on "
        "whole tensors"
    ),
    "host_bound/small_operations": (
        "the passes are made of {operations} tiny operations at {each} each, which is their launch and not their "
        "work: use whole-sequence modules instead of loops over time steps, larger batches, or torch.compile"
    ),
    "host_bound/small_updates": (
        "let the optimizer update its {tensors} tensors together: fused=True, or foreach=True; a larger batch with "
        "fewer updates, and fewer, wider layers help as well"
    ),
    "compute_bound": (
        "the device computes nearly all the time: lower precision (bfloat16 autocast), torch.compile, a larger batch, "
        "a smaller model or more devices are what remains"
    ),
    "compute_bound/threads": (
        "torch computes with {threads} of the {processors} processors that this rank has for itself: "
        "torch.set_num_threads({processors}), or OMP_NUM_THREADS={processors}"
    ),
    "compute_bound/precision": (
        "the model computes in float64: float32 (torch.set_default_dtype, model.float()) takes about half, "
        "bfloat16 autocast less"
    ),
    "compute_bound/forward": (
        "the forward pass takes most of it: `stepscope profile RUN` names the operations; fuse them (torch.compile), "
        "use scaled_dot_product_attention, channels_last and bfloat16"
    ),
    "compute_bound/backward": (
        "the backward pass takes most of it: freeze what need not learn, use torch.compile and bfloat16. Gradient "
        "checkpointing saves memory, not time: it computes activations a second time; use it where the memory that it "
        "frees allows a larger batch, and recompute less where there is memory left"
    ),
    "compute_bound/optimizer": (
        "the optimizer takes most of it: fused=True or foreach=True, a larger batch with fewer updates, or an "
        "optimizer with less state"
    ),
    "communication_bound": (
        "accumulate gradients over several batches (DDP's no_sync()), compress them (bfloat16 communication hook), "
        "use larger buckets (bucket_cap_mb), and check the network interface that is used (NCCL_SOCKET_IFNAME)"
    ),
    "checkpoint_heavy": (
        "save less often, only what is needed, and in the background (torch.distributed.checkpoint.async_save, or a "
        "copy to the host and a thread)"
    ),
    "evaluation_heavy": (
        "evaluate less often or on a fixed part of the data; use torch.inference_mode(), a larger batch and loader "
        "workers for it, too"
    ),
    "compile_heavy": (
        "the model is compiled again and again: find out why with TORCH_LOGS=recompiles; mark what changes as "
        "dynamic (torch.compile(dynamic=True), mark_dynamic), pad to a few lengths, keep Python numbers out of it"
    ),
    "logging_heavy": "log every N steps, gather several values into one call, and write files in the background",
    "gc_pauses": (
        "call gc.freeze() once model and data are there, take gc.collect() out of the loop, keep fewer small Python "
        "objects (lists of dicts: use arrays), or collect by hand between epochs"
    ),
    "periodic_stall": (
        "look at what your program does every {every}: saving, flushing, uploading, opening the next file; do it in "
        "the background, in smaller parts, or less often"
    ),
    "straggler": (
        "look at {who}: its data, its device (`nvidia-smi -q -d PERFORMANCE,ECC`), and what else runs on its host; "
        "all others wait for it; move it to another machine if it stays late"
    ),
    "straggler/data": "{who} waits for its data while the others have theirs: balance shards and their storage",
    "straggler/stage": (
        "{who} has more to do than the others: give it fewer layers; the last stage has the head and the loss besides, "
        "the first one the embedding"
    ),
    "straggler/worker": (
        "look at the ranks of {who}: their device (`nvidia-smi -q -d PERFORMANCE,ECC`), their host and what else runs "
        "there; the same stage of other replicas is faster, so it is not the model"
    ),
    "straggler/replica": (
        "look at the machines of {who}: their devices, their network and what else runs there; and whether its share "
        "of the data is harder than that of the others"
    ),
    "straggler/work": (
        "micro-batches differ in what they have to compute: put sequences together so that every micro-batch and every "
        "replica has about the same sum of squared lengths, or sort them by length first"
    ),
    "cpu_throttled": (
        "the control group's processor quota holds the training down: raise the limit (cpu.max, --cpus, "
        "resources.limits.cpu), or use as many threads and workers as it allows"
    ),
    "cpu_throttled/own": (
        "processes and threads that the training has started itself take its processors: use fewer loader workers or "
        "threads (torch.set_num_threads, OMP_NUM_THREADS) than processors, and end what is not needed"
    ),
    "gpu_throttled": (
        "the GPU is slowed down by {why}: `nvidia-smi -q -d PERFORMANCE` tells which; improve its cooling, check the "
        "power supply, or raise its power limit (nvidia-smi -pl)"
    ),
    "gpu_throttled/heat": (
        "the GPU is too hot: check fans, air flow and what stands beside it; until that is mended lower its power "
        "limit (nvidia-smi -pl), so that clocks stay even"
    ),
    "gpu_throttled/power": (
        "the GPU is at its power limit: raise it where cooling and supply allow (nvidia-smi -pl), or spread the load"
    ),
    "gpu_throttled/supply": (
        "the machine does not give the GPU the power that it wants: check its power supply and cables, and the limit "
        "of the rack; `nvidia-smi -q -d PERFORMANCE` tells the reason"
    ),
    "gpu_idle": (
        "the GPU waits: look at data, host and communication first; then a larger batch, CUDA graphs or torch.compile"
    ),
    "gpu_idle/unused": (
        "the model is on the processors and the GPU does nothing: model.to('cuda'), and every batch with "
        ".to('cuda', non_blocking=True); check torch.cuda.is_available()"
    ),
    "swapping": "memory does not suffice: use fewer loader workers, a smaller batch or smaller caches, or add memory",
    "padding_waste": (
        "sort samples into batches of like length (bucketing), pad to the longest of the batch and not to a fixed "
        "length, or pack several sequences into one"
    ),
    "memory_leak": (
        "look for tensors that are kept with their graph (append loss.item() or loss.detach() to lists, not loss), "
        "caches without a bound, and workers that keep data"
    ),
    "fragmentation": (
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, keep batches of few sizes, and free large tensors "
        "before larger ones are made"
    ),
    "disk_full": (
        "keep fewer checkpoints and runs (`stepscope gc`), or move them elsewhere, before the next checkpoint fails"
    ),
    "oom": (
        "use a smaller batch with gradient accumulation, activation checkpointing or a narrower type; "
        "if much is reserved but free, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    ),
    "oom/host": (
        "use fewer loader workers, a smaller prefetch_factor, smaller caches and memory-mapped data; or give the "
        "container or machine more memory"
    ),
    "divergence": (
        "lower the learning rate, warm it up, clip gradients (clip_grad_norm_), and start again from a checkpoint "
        "before {at}"
    ),
    "loss_spike": (
        "look at the batch of {at} and at the gradient norm before it; clip gradients; if the loss does not come back, "
        "restart from the checkpoint before it, past that batch or with a lower learning rate"
    ),
    "plateau": (
        "check that labels belong to their inputs, that gradients reach all layers and that the optimizer has the "
        "model's parameters; then try learning rates 10 times higher and lower on a few batches, which any model "
        "should fit"
    ),
    "non_finite": (
        "run once under torch.autograd.detect_anomaly() from a checkpoint before {at}; look for logarithms, "
        "divisions and roots of 0, lower the learning rate, clip gradients, and prefer bfloat16 to float16"
    ),
    "non_finite/gradient": ("look at the loss and the batch of {at}; run once under torch.autograd.detect_anomaly()"),
    "exploding_gradients": (
        "clip with torch.nn.utils.clip_grad_norm_, lower the learning rate, warm it up for longer, "
        "and look at the batch of {at}"
    ),
    "vanishing_gradients": (
        "check initialisation, normalisation and residual paths; under float16 use a GradScaler or bfloat16"
    ),
    "dead_gradients": (
        "check that its output reaches the loss: no detach, no frozen or unused branch, no ReLU that is always off"
    ),
    "learning_rate": "check the schedule: its total number of steps, that scheduler.step() is called once an update",
    "learning_rate/zero": (
        "the schedule has brought the learning rate to (nearly) 0 while the training goes on: give it the real number "
        "of steps, or stop there"
    ),
    "learning_rate/jump": (
        "look at the milestones and at what a resumed run sets: a learning rate may rise slowly (warm-up), not at "
        "once; go back to a checkpoint before it"
    ),
    "learning_rate/grows": (
        "the schedule raises the learning rate without an end: check the scheduler's factor (gamma above 1?) and its "
        "total number of steps; start again from a checkpoint before {at}, with the rate of that step as the highest"
    ),
    "learning_rate/high": (
        "lower the learning rate by a factor of 3 to 10 until the loss falls; check its unit and the schedule: Adam "
        "and its like diverge far below 1"
    ),
    "overfitting": (
        "stop at the best evaluation, at {at}, and use more data or augmentation, dropout, weight decay, or a "
        "smaller model"
    ),
    "dead_worker": (
        "look at the exit code: -9 and 'Bus error' mean memory (fewer workers, a larger /dev/shm), others an error in "
        "the dataset; run with num_workers=0 to see its traceback"
    ),
    "hang": (
        "`stepscope show RUN` has the stacks of where it stood still; ranks that wait in a collective wait for the one "
        "that does not"
    ),
    "crash": "the traceback is in `stepscope show RUN`; resume from the last checkpoint once its cause is mended",
    "crash/exit": (
        "the program chose this exit code itself: its own output says why; resume from the last checkpoint once that "
        "is mended"
    ),
    "crash/SIGKILL": (
        "SIGKILL leaves no traceback: find out who sent it. For lack of memory look at the kernel's log (dmesg) and "
        "the limits of the container, for a time limit at the scheduler; then resume from the last checkpoint"
    ),
    "crash/signal": (
        "somebody sent this signal: a scheduler, a launcher that lost another rank, a closed terminal (SIGHUP: use "
        "tmux, nohup or a job queue) or a person; resume from the last checkpoint"
    ),
    "crash/native": (
        "native code failed, below Python: run with PYTHONFAULTHANDLER=1 to see the line; SIGBUS mostly means that "
        "/dev/shm is full; resume from the last checkpoint"
    ),
    "crash/unseen": (
        "nobody saw the end: look at the logs of the machine, the container and the scheduler of that moment, memory "
        "first; resume from the last checkpoint"
    ),
}


ALARMS: dict[str, str] = {
    "anomaly": (
        "look at what else changed at {at}: the data, the learning rate, the gradient norm; if nothing is wrong, "
        "`watcher.analysis.anomaly: false` turns the rule off"
    ),
    "training_speed": (
        "`stepscope diagnose RUN` tells which phase grew; look for other jobs on the machine, throttled GPUs and a "
        "slow file system"
    ),
    "cpu_usage": (
        "use fewer or lighter loader workers, with OMP_NUM_THREADS=1 in them; look for other jobs on the machine"
    ),
    "preempted": "the scheduler took the job: queue it again, it goes on from the last checkpoint",
    "gpu_lost": "drain the node, and reset or replace the GPU",
    "gpu_xid": "look up the Xid in NVIDIA's table; drain the node if it comes again",
    "gpu_ecc": "results since then may be wrong: go back to the checkpoint before it, and have the GPU reset",
    "gpu_driver_hung": "look at dmesg for the driver's errors; the node may need a reset",
    "sampler_blind": "`stepscope doctor` tells what is missing; alerts on these metrics are blind until it is back",
    "rows_dropped": "log fewer values, or set recorder.high_frequency; the metrics stepscope/* tell how many are lost",
}
"""What to do about alerts that are no finding of a run, by the name of their rule."""


def crash_remedy(state: str, cause: str) -> str:
    """Return what to do about a run that ended so."""
    return remedy("oom", "host") if state == "oom-killed" else remedy("crash", crash_kind(state, cause))


def remedy(kind: str, cause: str = "", **fields: object) -> str:
    """Return what to do about a finding, with the fields filled in; the text of the kind alone where one is missing."""
    known = {**spoken(fields), **fields}
    for key in (f"{kind}/{cause}", kind):
        text = REMEDIES.get(key) or ALARMS.get(key)
        if text is None:
            continue
        try:
            return text.format_map(known)
        except KeyError:
            continue  # a field is not known here: the text of the kind alone has none that `PLAIN` does not know
    return ""


def spoken(facts: Mapping[str, object]) -> dict[str, str]:
    """Return the fields of remedies for what is known of a finding: `at` for its `step`, `who` for its `rank`."""
    step, rank = facts.get("step"), facts.get("rank")
    found = {"at": f"step {step}"} if isinstance(step, int) else {}
    return {**PLAIN, **found, **({"who": f"rank {rank}"} if isinstance(rank, int) else {})}
