"""Waiting for batches: every `DataLoader`, its workers' time per batch, and workers that die."""

from __future__ import annotations

import re
import signal
import weakref
from multiprocessing.connection import wait
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data
from torch import Tensor
from torch.utils.data import dataloader
from torch.utils.data._utils import signal_handling

from stepscope.core.errors import in_words
from stepscope.integrations.torch.batch import count_samples
from stepscope.integrations.torch.workers import Slots, WorkerProbe
from stepscope.recorder import native
from stepscope.recorder.automatic import BITS, CODES

if TYPE_CHECKING:
    from stepscope.integrations.torch.patches import Patches
    from stepscope.integrations.torch.timeline import Timeline
    from stepscope.session.run import Run

DATA = CODES["data"]
MOST_LOADERS = 20
"""Maximum loaders whose settings are recorded: a program may create one per epoch."""
SEQUENCES = (list, tuple)
ITERATOR = dataloader._BaseDataLoaderIter  # noqa: SLF001 - torch has no hook here

DEATH = re.compile(
    r"DataLoader worker \(pid (?P<pid>\d+)\) (?:is killed by signal: (?P<signal>[^.]+)|.*code (?P<code>\d+))"
)
"""The error that torch raises when a worker has died."""
DYING_SECONDS = 0.5
"""Maximum time between a broken pipe and the end of the worker."""


class Loaders:
    """The hooks on DataLoaders, which report every batch to `timeline`."""

    __slots__ = ("_deaths", "_described", "_feeding", "_iterator", "_patches", "_slots", "_timeline", "inspect", "look")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._patches: Patches | None = None
        self._feeding: weakref.ref[Any] | None = None
        self._iterator = 0
        self._described: weakref.WeakSet[Any] = weakref.WeakSet()
        self._deaths = WorkerDeaths(timeline.run)
        self._slots: Slots | None = None
        self.look: Any = None
        """Called before the first batch, when the model exists."""
        self.inspect: Any = None
        """Called periodically with training batches."""

    def attach(self, patches: Patches) -> None:
        """Install the hooks."""
        self._deaths.attach(patches)
        patches.wrap(torch.utils.data.DataLoader, "__iter__", self._iterating)
        patches.wrap(torch.utils.data.DataLoader, "_get_iterator", self._probing)
        patches.wrap(ITERATOR, "__next__", self._fetching)
        self._patches = patches

    def trace(self) -> None:
        """Remove functions in C that a compiler may meet."""
        if self._patches is not None:
            self._patches.exchange(ITERATOR, "__next__", self._fetching_in_python)

    def detach(self) -> None:
        """Check the workers for the last time."""
        self._deaths.look()

    def _iterating(self, original: Any) -> Any:
        timeline = self._timeline

        def iterate(loader: Any) -> Any:
            if not timeline.active or get_ident() != timeline.thread:
                return original(loader)
            if torch.is_grad_enabled():
                timeline.steps.mark()
            charge = timeline.data if torch.is_grad_enabled() else timeline.evaluation
            begun = timeline.span is None and timeline.pause() and charge.begin()  # workers are started here
            try:
                return original(loader)
            finally:
                if begun:
                    charge.end()

        return iterate

    def _probing(self, original: Any) -> Any:
        timeline = self._timeline

        def get_iterator(loader: Any) -> Any:
            workers = loader.num_workers
            if timeline.active and get_ident() == timeline.thread:
                self._describe(loader)
            if not timeline.active or not workers or get_ident() != timeline.thread:
                return original(loader)
            user = loader.worker_init_fn
            slots = Slots(workers)
            loader.worker_init_fn = WorkerProbe(slots, user)
            try:
                iterator = original(loader)
            finally:
                loader.worker_init_fn = user
            iterator._stepscope_slots = slots  # noqa: SLF001 - a mark of ours on torch's iterator
            return iterator

        return get_iterator

    def _describe(self, loader: Any) -> None:
        """Record the settings of each loader, once."""
        if loader in self._described or len(self._described) >= MOST_LOADERS:
            return
        self._described.add(loader)
        self._timeline.run.own_event(
            "loader",
            workers=loader.num_workers,
            batch_size=loader.batch_size,
            prefetch=loader.prefetch_factor,
            persistent=loader.persistent_workers,
            pinned=loader.pin_memory,
            dataset=type(loader.dataset).__name__,
            evaluates=not torch.is_grad_enabled(),
        )

    def _fetching(self, original: Any) -> Any:
        """Return the wrapper of `__next__`, in C if that is available and nothing is compiled."""
        hot = None if self._timeline.traced else native.in_place()
        if hot is None:
            return self._fetching_in_python(original)
        return hot.fetching(self._timeline, self, original, self._marking(original), Tensor, torch.is_grad_enabled)

    def _fetching_in_python(self, original: Any) -> Any:
        """Return the wrapper; while steps are not measured it does little more than count them."""
        timeline, marked = self._timeline, self._marking(original)
        keeper, note, is_training = timeline.keeper, timeline.steps.note, torch.is_grad_enabled

        def fetch(iterator: Any) -> Any:
            if (
                not timeline.hushed
                or self._iterator != id(iterator)
                or timeline.left is not None
                or not is_training()
                or get_ident() != timeline.thread
            ):
                return marked(iterator)
            if keeper.stepped:
                if keeper.until < 2 or not note(keeper.samples):
                    return marked(iterator)
                keeper.until -= 1
                keeper.samples, keeper.stepped, keeper.batches = None, False, 0
            keeper.fed = True
            try:
                batch = original(iterator)
            except BaseException as error:
                self._end_fetch(error)
                raise
            self._count(batch)
            return batch

        return fetch

    def _marking(self, original: Any) -> Any:
        """Return how a batch is fetched in a step that may be measured."""
        timeline = self._timeline
        keeper, add = timeline.keeper, timeline.add

        def fetch(iterator: Any) -> Any:
            if (
                not (timeline.fast or timeline.hushed)
                or self._iterator != id(iterator)
                or timeline.left is not None
                or not torch.is_grad_enabled()
                or get_ident() != timeline.thread
            ):
                return self._other_fetch(original, iterator)
            if keeper.stepped:
                keeper.close(again=True)  # which may change what is measured from here on
            keeper.fed = True
            is_measured = not timeline.quiet and timeline.steps.marking
            if is_measured:
                add(monotonic_ns() << BITS | DATA)
            try:
                try:
                    batch = original(iterator)
                finally:
                    if is_measured:
                        add(monotonic_ns() << BITS)
            except BaseException as error:
                self._end_fetch(error)
                raise
            self._count(batch)
            return batch

        return fetch

    def _count(self, batch: Any) -> None:
        """Count the samples of a batch, and record the workers' times of the batches built since the last one."""
        first, keeper = batch, self._timeline.keeper
        while type(first) in SEQUENCES and first:
            first = first[0]
        if self._slots is None and type(first) is Tensor and first.ndim:
            keeper.batches += 1
            keeper.before = samples = keeper.samples
            keeper.samples = first.shape[0] if samples is None else samples + first.shape[0]
            return
        keeper.fetched(count_samples(batch))
        if self._slots is not None:
            for times in self._slots.read():
                row = {"data/load_seconds": times.load, "data/collate_seconds": times.collate}
                if times.transform is not None:
                    row["data/transform_seconds"] = times.transform
                self._timeline.run.log(row)

    def _other_fetch(self, original: Any, iterator: Any) -> Any:
        timeline = self._timeline
        if not timeline.active or get_ident() != timeline.thread:
            return original(iterator)
        if not torch.is_grad_enabled() or "_stepscope_evaluates" in iterator.__dict__:
            return self._evaluation_batch(original, iterator)
        start = monotonic_ns() if timeline.timing else 0
        timeline.notice()
        self._begin_fetch(iterator)
        timeline.keeper.fetching()
        begun = not timeline.quiet and timeline.data.begin()
        hook = monotonic_ns() if start else 0
        try:
            batch = original(iterator)
        except BaseException as error:
            self._end_fetch(error)
            raise
        finally:
            back = monotonic_ns() if start else 0
            if begun:
                timeline.data.end()
        timeline.steps.open()
        self._count(batch)
        if self.inspect is not None and timeline.looking:
            self.inspect(batch)
        if start and timeline.timing:
            timeline.cost(hook - start + monotonic_ns() - back)
        return batch

    def _begin_fetch(self, iterator: Any) -> None:
        timeline = self._timeline
        if timeline.left is not None:
            timeline.recover()
        if timeline.span is not None:
            timeline.train()
        if self._iterator != id(iterator):
            if timeline.keeper.stepped:
                timeline.keeper.close()
            self._iterator, self._slots = id(iterator), iterator.__dict__.get("_stepscope_slots")
            self._feeding = timeline.fresh = weakref.ref(iterator, self._abandoned)
            self._deaths.follow(iterator)
            timeline.steps.mark()
            if self.look is not None:
                self.look()

    def _abandoned(self, reference: weakref.ref[Any]) -> None:
        """Handle the end of a loop over an iterator: its last step ends there."""
        if reference is self._feeding and self._timeline.active and get_ident() == self._timeline.thread:
            self._feeding, self._iterator = None, 0
            self._timeline.keeper.starved()
            self._deaths.look()

    def _end_fetch(self, error: BaseException) -> None:
        self._feeding, self._iterator = None, 0
        self._timeline.keeper.starved()
        self._deaths.look(None if isinstance(error, StopIteration) else error)

    def _evaluation_batch(self, original: Any, iterator: Any) -> Any:
        timeline = self._timeline
        timeline.notice()
        timeline.evaluate(iterator)
        try:
            return original(iterator)
        except BaseException:
            timeline.train()
            iterator.__dict__.pop("_stepscope_evaluates", None)
            raise


class WorkerDeaths:
    """The workers of the training's loader.

    A dead worker shows itself in several ways: through torch's own error, which a signal handler raises wherever the
    program happens to be, or through a broken pipe, which may precede the end of the process. So workers are checked
    whenever a loop over batches ends, and again at the end of the run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._workers: list[Any] = []
        self._error: RuntimeError | None = None

    def attach(self, patches: Patches) -> None:
        """Listen to torch's signal handler."""
        patches.wrap(signal_handling, "_error_if_any_worker_fails", self._checking)

    def _checking(self, original: Any) -> Any:
        def check() -> None:
            try:
                original()
            except RuntimeError as error:
                self._error = error
                raise

        return check

    def follow(self, iterator: Any) -> None:
        """Watch the workers of this iterator from now on."""
        self._workers = [worker for worker in getattr(iterator, "_workers", ()) if worker.pid]

    def look(self, error: BaseException | None = None) -> None:
        """Record the workers that have died; `error` is what ended the loop, if anything did."""
        workers, self._workers = self._workers, []
        error, self._error = error or self._error, None
        if workers and isinstance(error, (OSError, EOFError)):
            wait([worker.sentinel for worker in workers], DYING_SECONDS)
        codes = {str(worker.pid): worker.exitcode for worker in workers}
        # torch ends workers that do not stop by themselves with SIGTERM: that is not a crash.
        dead = {pid: code for pid, code in codes.items() if code and code != -signal.SIGTERM} or _from_error(error)
        if dead:
            said = in_words(error, 500) if error is not None else ""
            self._run.own_event("worker_died", workers=dead, error=said)


def _from_error(error: BaseException | None) -> dict[str, int]:
    """Return the content of torch's own error: all that is known of a worker that died before its iterator."""
    said = DEATH.match(str(error)) if isinstance(error, RuntimeError) else None
    if said is None:
        return {}
    codes = {signal.strsignal(number): -number for number in signal.valid_signals()}
    return {said["pid"]: int(said["code"] or codes.get(said["signal"], 0))}
