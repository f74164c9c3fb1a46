"""Runs inside the worker processes of a DataLoader and times each batch where it is built.

Each worker has a slot in memory shared with the trainer and writes a few numbers there: no queue, no lock, no message.
Fresh worker processes import this module, so it imports nothing but torch, which they have loaded already.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

ENTRIES = 64
"""Number of batches remembered per worker; the trainer reads after every batch."""
FIELDS = 3
"""Fields of an entry: time to load the items, time of their transforms, time to collate them; in ns."""
HEAD = 1
"""Words before the entries: the number of batches the worker has built."""
WORDS = HEAD + ENTRIES * FIELDS
TRANSFORMS = ("transform", "target_transform", "transforms")


class BatchTimes(NamedTuple):
    """A worker's time for one batch, in seconds."""

    load: float
    transform: float | None
    """None if the dataset has no transforms that can be separated from loading."""
    collate: float


class Slots:
    """The slots of all workers of one iterator: a shared tensor of 64-bit integers, one row per worker."""

    def __init__(self, workers: int) -> None:
        self.words = torch.zeros((workers, WORDS), dtype=torch.int64).share_memory_()
        self._seen = [0] * workers

    def write(self, worker: int, load: int, transform: int, collate: int) -> None:
        """Add an entry: the numbers first, then the count that makes them valid."""
        row = self.words[worker]
        made = int(row[0])
        at = HEAD + made % ENTRIES * FIELDS
        row[at], row[at + 1], row[at + 2] = load, transform, collate
        row[0] = made + 1

    def read(self) -> list[BatchTimes]:
        """Return the batches that were built since the last call and are still there."""
        found = []
        for worker, made in enumerate(self.words[:, 0].tolist()):
            if made == self._seen[worker]:
                continue
            row = self.words[worker].tolist()
            made = row[0]  # noqa: PLW2901 - the worker may have built more by now
            for number in range(max(self._seen[worker], made - ENTRIES + 1), made):
                at = HEAD + number % ENTRIES * FIELDS
                load, transform, collate = row[at : at + FIELDS]
                found.append(BatchTimes(load / 1e9, None if transform < 0 else transform / 1e9, collate / 1e9))
            self._seen[worker] = made
        return found


class TimedCall:
    """A transform or collate function that adds up its own time, and otherwise behaves as `inner`."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.spent = inner, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `inner`."""
        begun = perf_counter_ns()
        try:
            return self.inner(*args, **kwargs)
        finally:
            self.spent += perf_counter_ns() - begun

    def take(self) -> int:
        """Return the time since the last call of this, in ns."""
        spent, self.spent = self.spent, 0
        return spent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("inner"), name)


class WorkerProbe:
    """The `worker_init_fn` of the user (`inner`), and then ours, which times the fetcher of this worker."""

    def __init__(self, slots: Slots, inner: Any = None) -> None:
        self.slots, self.inner = slots, inner

    def __call__(self, worker: int) -> None:
        """Start a worker process."""
        if self.inner is not None:
            self.inner(worker)
        info = get_worker_info()
        transforms = time_transforms(info.dataset) if info is not None else []
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):  # noqa: SLF001 - torch has no hook here
            _time_fetches(kind, self.slots, worker, transforms)


def time_transforms(dataset: Any) -> list[TimedCall]:
    """Wrap the transforms of this worker's copy of a dataset, where torchvision's datasets keep them."""
    for _ in range(4):  # inside subsets
        found = {name: call for name in TRANSFORMS if callable(call := getattr(dataset, name, None))}
        if found:
            break
        dataset = getattr(dataset, "dataset", None)
    else:
        return []
    timed: list[Any] = []
    for name, call in found.items():
        if name == "transforms" and "transform" in found:  # torchvision's pair of the other two: called instead of them
            timed = []
        wrapper = TimedCall(call)
        try:
            setattr(dataset, name, wrapper)
        except (AttributeError, TypeError):  # read-only: its time stays in the loading
            continue
        timed.append(wrapper)
    return timed


def _time_fetches(kind: Any, slots: Slots, worker: int, transforms: list[TimedCall]) -> None:
    original = kind.fetch

    def timed_fetch(self: Any, index: Any) -> Any:
        if type(self.collate_fn) is not TimedCall:
            self.collate_fn = TimedCall(self.collate_fn)
        begun = perf_counter_ns()
        made = original(self, index)
        spent = perf_counter_ns() - begun
        collate = self.collate_fn.take()
        slots.write(worker, spent - collate, sum(call.take() for call in transforms) if transforms else -1, collate)
        return made

    kind.fetch = timed_fetch
