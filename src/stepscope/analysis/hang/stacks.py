"""What each rank does, by its stacks and the kernel's word: it waits in a collective, reads data, holds a lock."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.analysis.hang.spelling import who

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepscope.analysis.hang.evidence import RankEvidence

COLLECTIVE, BACKWARD, DATA, CHECKPOINT, EVALUATION = "collective", "backward", "data", "checkpoint", "evaluation"
COMPILE, DISK, PIPE, NETWORK, LOCK = "compile", "disk", "pipe", "network", "lock"
GIL, DEBUGGER, STOPPED, SLEEP, CODE = "gil", "debugger", "stopped", "sleep", "code"
OUTSIDE = (DISK, PIPE, NETWORK, LOCK, GIL, DEBUGGER, STOPPED)
"""Activities that have nothing to do with torch."""
LONG = (CHECKPOINT, EVALUATION, COMPILE)
"""Activities that may take minutes in a healthy training."""
DOES = {
    COLLECTIVE: "waits in {what} at {place}",
    BACKWARD: "is in the backward pass at {place}",
    DATA: "is in {what} at {place}",
    CHECKPOINT: "reads or writes a checkpoint at {place}",
    EVALUATION: "evaluates at {place}",
    COMPILE: "compiles at {place}",
    DISK: "waits for a disk or file system{kernel} at {place}",
    PIPE: "waits for a pipe or another program{kernel} at {place}",
    NETWORK: "waits for the network{kernel} at {place}",
    LOCK: "waits for a lock{kernel} at {place}",
    GIL: "does not let Python run: native code holds the GIL at {place}",
    DEBUGGER: "stands in a debugger at {place}",
    STOPPED: "is stopped by a signal at {place}",
    SLEEP: "sleeps at {place}",
    CODE: "is in {what} at {place}",
}
"""What one rank does, as text; `place` is the innermost line of the user's own code."""
DEEP = 30
"""Frames that are looked at, from the innermost."""

_TABLE: tuple[tuple[str, str, str], ...] = (
    (DEBUGGER, r"/(pdb|bdb)\.py$|/(debugpy|pydevd|_pydevd_bundle|pudb|ipdb)/", r""),
    (
        COMPILE,
        r"/torch/(_dynamo|_inductor|_functorch)/|/triton/(compiler|runtime|backends)/",
        r"compile|_call_impl_inner",
    ),
    (
        CHECKPOINT,
        r"/torch/distributed/checkpoint/|/torch/serialization\.py$|/safetensors/|/orbax/|dist_checkpointing/",
        r"",
    ),
    (COLLECTIVE, r"/torch/distributed/(?!elastic|launcher|run\.py|optim|pipelining)|/deepspeed/comm/|/horovod/", r""),
    (COLLECTIVE, r"/torch/nn/parallel/distributed\.py$", r"sync|reduc|broadcast|rebuild|_pre_forward"),
    (DATA, r"/torch/utils/data/|/webdataset/|/streaming/base/|/datasets/(iterable|arrow)_dataset\.py$", r""),
    (DATA, r"/litdata/|/ffcv/|/nvidia/dali/|/mosaicml/", r""),
    (BACKWARD, r"/torch/autograd/(graph|__init__)\.py$", r"backward"),
)
"""Activity, pattern of the file, pattern of the function; the innermost frame that one of them fits decides."""
_FILES = [(kind, re.compile(file), re.compile(function)) for kind, file, function in _TABLE]
_WORDS = (
    (EVALUATION, re.compile(r"^(evaluate|validate|validation_\w+|evaluation_\w+|run_eval\w*|eval_epoch)$")),
    (CHECKPOINT, re.compile(r"^(save_checkpoint|_save_checkpoint|load_checkpoint|save_pretrained|save_model)$")),
)
_LOCKS = re.compile(
    r"/(threading|queue|filelock/\w+|multiprocessing/(synchronize|queues)|concurrent/futures/_base)\.py$"
)
_ASLEEP = re.compile(r"nanosleep")
_KERNEL: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        DISK,
        re.compile(
            r"^(folio_|wait_on_page|io_schedule|nfs|rpc_wait|jbd2|ext4|xfs|btrfs|blk_|fuse_|request_wait|ceph|cl_)"
        ),
    ),
    (DISK, re.compile(r"^(ll_|osc_|submit_bio|do_get_write_access|wait_on_buffer|__wait_on_buffer|fsnotify|v9fs|p9_)")),
    (PIPE, re.compile(r"^(pipe_|anon_pipe|fifo_open|wait_for_partner|n_tty_read|do_wait|kernel_wait)")),
    (NETWORK, re.compile(r"^(sk_wait|tcp_|inet_|unix_stream|skb_wait|__skb_wait|unix_wait)")),
    (LOCK, re.compile(r"^(futex|locks_lock|flock_lock|posix_lock|fcntl_setlk)")),
)
_NOT_USERS = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/python3|^<frozen|/stepscope/(recorder|session|integrations)/|/torch/"
)
_PLUMBING = ("wrapper", "inner", "_wrapped_call_impl", "_call_impl", "decorate_context", "__torch_function__")


class Activity(NamedTuple):
    """What one rank does; ranks with equal activities are one group."""

    kind: str
    what: str = ""
    """The innermost known operation, such as all_reduce."""
    place: str = ""
    """The innermost line of the user's code, as train.py:88; empty if there are no stacks."""
    kernel: str = ""
    """Where the kernel holds it."""

    def said(self) -> str:
        """Return the activity as the words after "rank 3"."""
        kernel = f" ({self.kernel})" if self.kernel else ""
        text = DOES[self.kind].format(what=self.what or "its own code", place=self.place, kernel=kernel)
        return text if self.place else text.removesuffix(" at ")


def main_thread(threads: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the main thread: by its name, otherwise the first, because saved stacks begin with it."""
    named = (thread for thread in threads if thread.get("name") == "MainThread")
    return next(named, threads[0] if threads else None)


def activity_of(rank: RankEvidence) -> Activity | None:
    """Return what a rank does; None if there are neither stacks nor a word of the kernel."""
    frames = list((main_thread(rank.stacks) or {}).get("frames") or ())[:DEEP]
    waiting = rank.waits[0] if rank.waits else {}
    state, kernel = str(waiting.get("state") or ""), str(waiting.get("waits_in") or "")
    if not frames and not state:
        return None
    place, held = place_of(frames), next((kind for kind, pattern in _KERNEL if pattern.search(kernel)), "")
    found = _halted(state, held, place, kernel)
    if found is None and "does not answer" in rank.no_stacks:
        found = Activity(GIL, "", place)
    known = _known(frames) if found is None else None
    if known is not None:
        found = Activity(known[0], known[1], place)
    return found or _waiting(frames, state, held, kernel)


def _halted(state: str, held: str, place: str, kernel: str) -> Activity | None:
    """Return the activity of a process that can do nothing, whatever its stacks say."""
    if state in ("T", "t"):
        return Activity(STOPPED if state == "T" else DEBUGGER, "", place)
    if state == "D":
        return Activity(held if held in (PIPE, NETWORK) else DISK, "", place, kernel)
    return None


def _waiting(frames: Sequence[Mapping[str, Any]], state: str, held: str, kernel: str) -> Activity | None:
    """Return the activity of a process whose frames are the user's own code, by where the kernel holds it."""
    place = place_of(frames)
    if not frames:
        return Activity(held, "", "", kernel) if held and held != LOCK else None
    if held:
        return Activity(held, "", place, kernel)
    if _ASLEEP.search(kernel):
        return Activity(SLEEP, "", place)
    if state == "S" and any(_LOCKS.search(str(frame.get("file"))) for frame in frames[:2]):
        return Activity(LOCK, "", place)
    return Activity(CODE, _function(frames), place)


def groups(ranks: Iterable[RankEvidence]) -> dict[Activity, tuple[int, ...]]:
    """Return the ranks by what they do, the largest group first; ranks without stacks are left out."""
    found: dict[Activity, list[int]] = {}
    for rank in ranks:
        activity = activity_of(rank)
        if activity is not None:
            found.setdefault(activity, []).append(rank.rank)
    ordered = sorted(found.items(), key=lambda one: (-len(one[1]), one[1]))
    return {activity: tuple(sorted(members)) for activity, members in ordered}


def said(grouped: Mapping[Activity, tuple[int, ...]]) -> list[str]:
    """Return one sentence for each group: "62 ranks wait in all_reduce at train.py:88"."""
    return [_sentence(members, activity.said()) for activity, members in grouped.items()]


def _sentence(members: tuple[int, ...], does: str) -> str:
    if len(members) == 1:
        return f"rank {members[0]} {does}"
    verb, _, rest = does.partition(" ")
    plural = {"is": "are", "does": "do", "reads": "read", "stands": "stand"}
    return f"{who(members)} {plural.get(verb, verb.removesuffix('s'))} {rest}"


def _known(frames: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    for at, frame in enumerate(frames):
        file, function = str(frame.get("file", "")).replace("\\", "/"), str(frame.get("function", ""))
        for kind, path, name in _FILES:
            if path.search(file) and name.search(function):
                return kind, _operation(frames, at, path)
        for kind, name in _WORDS:
            if name.search(function):
                return kind, function
    return None


def _operation(frames: Sequence[Mapping[str, Any]], at: int, path: re.Pattern[str]) -> str:
    """Return the outermost function of the library that the user called, from frame `at` outwards."""
    found = str(frames[at].get("function", ""))
    for frame in frames[at:]:
        if not path.search(str(frame.get("file", "")).replace("\\", "/")):
            break
        function = str(frame.get("function", ""))
        if function not in _PLUMBING:
            found = function
    if found == "__next__":
        return "DataLoader.__next__"
    return found


def place_of(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the innermost line of the user's own code as train.py:88, otherwise the outermost; "" without frames."""
    users = [frame for frame in frames if not _NOT_USERS.search(str(frame.get("file", "")).replace("\\", "/"))]
    chosen = users[0] if users else frames[-1] if frames else None
    if chosen is None:
        return ""
    name = str(chosen.get("file") or "").replace("\\", "/").rpartition("/")[2]
    return f"{name or '?'}:{chosen.get('line') or '?'}"


def _function(frames: Sequence[Mapping[str, Any]]) -> str:
    for frame in frames:
        if not _NOT_USERS.search(str(frame.get("file", "")).replace("\\", "/")):
            return str(frame.get("function") or "")
    return str(frames[0].get("function") or "")
