"""Time of a dataset's transforms for each batch, in whichever process they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from stepscope.integrations.torch.patches import Patches
from stepscope.integrations.torch.workers import TRANSFORMS, Slots, TimedCall, WorkerProbe, time_transforms
from stepscope.recorder.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Callable


class DatasetTransforms:
    """Follows the training loaders that are iterated while it is attached."""

    def __init__(self, charge: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
        """Follow no loader yet; `charge` returns a function whose time counts as waiting for data."""
        self._charge, self._notices = charge, Complaints()
        self.measured = False
        """Whether the dataset has transforms that can be separated from loading."""
        self._patches = Patches()
        self._active = False
        self._slots: list[Slots] = []
        self._calls: list[TimedCall] = []
        self._wrapped: list[Any] = []

    def attach(self) -> None:
        """Examine every loader whose iteration starts."""
        self._active = self._patches.wrap(DataLoader, "_get_iterator", self._iterating)

    def detach(self) -> None:
        """Restore everything. May be called again."""
        self._active = False
        self._patches.restore()
        for dataset in self._wrapped:
            for name in TRANSFORMS:
                call = vars(dataset).get(name)
                if isinstance(call, TimedCall):
                    setattr(dataset, name, call.inner)
        self._wrapped, self._calls, self._slots = [], [], []

    def _iterating(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        charged = self._charge(original)

        def get_iterator(loader: Any) -> Any:
            # Evaluation runs without gradients: its batches are not counted.
            return self._follow(charged, loader) if self._active and torch.is_grad_enabled() else original(loader)

        return get_iterator

    def _follow(self, original: Callable[[Any], Any], loader: Any) -> Any:
        user = loader.worker_init_fn
        with self._notices.shield("transforms", "time the dataset's transforms"):  # such as no shared memory
            self._prepare(loader)
        try:
            return original(loader)
        finally:
            if loader.worker_init_fn is not user:
                loader.worker_init_fn = user

    def _prepare(self, loader: Any) -> None:
        """Time the transforms: here, or in the workers that are about to start."""
        if not loader.num_workers:
            self._follow_here(loader.dataset)
            return
        slots = Slots(loader.num_workers)
        loader.worker_init_fn = WorkerProbe(slots, loader.worker_init_fn)
        self._slots.append(slots)

    def _follow_here(self, dataset: Any) -> None:
        if any(dataset is known for known in self._wrapped):
            return
        calls = time_transforms(dataset)
        self._calls += calls
        self.measured = self.measured or bool(calls)
        while dataset is not None and not any(isinstance(call, TimedCall) for call in vars(dataset).values()):
            dataset = getattr(dataset, "dataset", None)
        if dataset is not None:
            self._wrapped.append(dataset)

    def take(self) -> list[int]:
        """Return the transform time of each batch since the last call, in ns."""
        found = [] if not self._calls else [sum(call.take() for call in self._calls)]
        times = (each for slots in self._slots for each in slots.read())
        found += [round(each.transform * 1e9) for each in times if each.transform is not None]
        self.measured = self.measured or bool(found)
        return found
