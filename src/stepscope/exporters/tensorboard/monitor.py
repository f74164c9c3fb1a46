"""Scalars and histograms for TensorBoard from inside a program. Nothing here raises into the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import in_words
from stepscope.core.walls import wall
from stepscope.exporters.tensorboard import records
from stepscope.exporters.tensorboard.records import EventWriter
from stepscope.recorder.complaints import Complaints

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

BUCKETS = 64
"""Buckets of a histogram."""
MOST_VALUES = 1 << 20
"""Values of a tensor that a histogram is made of; a larger tensor is thinned out evenly."""
DEEPEST = 8
"""Levels of dictionaries that are looked into."""


class SummaryWriter:
    """Writes an event file, with the methods of torch's writer of that name that monitors use.

    A value that cannot be written is reported once and counted in `refused`: one that is not a number, a tensor
    without a finite value, a full disk.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        """Write into a folder; the file is made with the first value."""
        self.log_dir = str(log_dir)
        self.refused = 0
        self._file = EventWriter(Path(log_dir))
        self._lock = threading.Lock()
        self._notices = Complaints()

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None, walltime: float | None = None) -> None:
        """Write one number; NaN and infinities are numbers."""
        number = number_of(scalar_value)
        if number is None:
            self._refuse(tag, f"there is no single number in a {type(scalar_value).__name__}", "number")
            return
        self._write(records.scalar(_tag(tag), number), global_step, walltime)

    def add_histogram(self, tag: str, values: Any, global_step: Any = None, walltime: float | None = None) -> None:
        """Write the distribution of a tensor's finite values; nothing if it has none."""
        with wall(lambda error: self._refuse(tag, in_words(error, 200), "values")):
            encoded = _histogram(_tag(tag), values)
            if encoded is None:
                self._refuse(tag, "it has no finite value", "empty")
            else:
                self._write(encoded, global_step, walltime)

    def _write(self, value: bytes, step: Any, seconds: float | None) -> None:
        number = number_of(0 if step is None else step)
        whole = int(number) if number is not None and abs(number) < 2**62 else 0
        self._locked(partial(self._file.write, whole, [value], seconds))

    def _locked(self, write: Callable[[], None]) -> None:
        try:
            with self._lock:
                write()
        except OSError as error:
            self._refuse(self.log_dir, f"{error.strerror or error}", "disk")

    def _refuse(self, what: str, cause: str, kind: str) -> None:
        self.refused += 1
        self._notices.say(kind, f"cannot write {str(what)[:80]!r} for TensorBoard: {cause}; it is left out")

    def flush(self) -> None:
        """Write the buffered events to the file."""
        self._locked(self._file.flush)

    def close(self) -> None:
        """Write the buffered events and close the file; may be called again."""
        self._locked(self._file.close)


class TensorBoardMonitor:
    """Write metrics of the training, of the machine and of a model's parameters to an event file.

    Works without TensorBoard and TensorFlow; any TensorBoard reads what it writes. No method raises into the training:
    NaN and infinities are written as such, a tensor without a finite value is left out and reported once.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        """Write into a folder; several monitors in one folder write separate files."""
        self.writer = SummaryWriter(log_dir)
        self.start_time = time.time()
        """Seconds since 1970 UTC."""

    def log_training_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write numbers as `training/<key>`."""
        for tag, value in numbers_in(metrics, "training"):
            self.writer.add_scalar(tag, value, step)

    def log_resource_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write numbers as `resources/<key>`, those of dictionaries in it as `resources/<key>/<subkey>`, at any depth.

        What `monitor_resources()` returns can be given as it is.
        """
        for tag, value in numbers_in(metrics, "resources"):
            self.writer.add_scalar(tag, value, step)

    def log_model_parameters(self, step: int, model: Any) -> None:
        """Write histograms `parameters/<name>` and `gradients/<name>` of the parameters that have a gradient."""
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self.writer.add_histogram(f"parameters/{name}", parameter.data, step)
                self.writer.add_histogram(f"gradients/{name}", parameter.grad.data, step)

    def flush(self) -> None:
        """Write the buffered events to the file."""
        self.writer.flush()

    def close(self) -> None:
        """Write the buffered events and close the file; may be called again."""
        self.writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def number_of(value: Any) -> float | None:
    """Return the one number in a value, or None; a tensor on a device is waited for."""
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def numbers_in(metrics: Mapping[Any, Any], prefix: str, depth: int = DEEPEST) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dictionaries by their path."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            if depth > 1:
                yield from numbers_in(value, f"{prefix}/{name}", depth - 1)
        else:
            yield f"{prefix}/{name}", value


def _tag(tag: str) -> bytes:
    return str(tag).encode("utf-8", "replace")


def _histogram(tag: bytes, values: Any) -> bytes | None:
    import numpy as np

    detach = getattr(values, "detach", None)
    plain = detach().cpu().double().numpy() if callable(detach) else values
    array = np.asarray(plain, np.float64).ravel()
    array = array[:: max(1, len(array) // MOST_VALUES)]
    array = array[np.isfinite(array)]
    if not len(array):
        return None
    low, high = float(array.min()), float(array.max())
    # All values equal, or so far apart that their distance overflows: such a tensor is one bucket.
    if high / BUCKETS - low / BUCKETS > 0 and np.isfinite(high - low):
        counts, edges = np.histogram(array, BUCKETS, (low, high))
        limits, heights = edges[1:].tolist(), counts.tolist()
    else:
        limits, heights = [high], [len(array)]
    with np.errstate(over="ignore"):
        sums = {"sum": float(array.sum()), "sum_squares": float((array * array).sum())}
    return records.histogram(tag, limits, heights, {"min": low, "max": high, "num": float(len(array)), **sums})
