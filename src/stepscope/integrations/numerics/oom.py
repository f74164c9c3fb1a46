"""When memory runs out, record the running module and the largest tensors as an event; the exception goes on.

Nothing is hooked beforehand: the running module is read from the traceback. Works for GPUs and for the host's memory.
The GPU part is not verified on hardware: the tests drive it with stand-ins.
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from stepscope.core.parameters import plain_name
from stepscope.core.remedies import remedy
from stepscope.integrations.numerics.memory import largest_free
from stepscope.integrations.numerics.models import Models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType, TracebackType

    from typing_extensions import Self

SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")
WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|[KMGT]iB)")
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
MOST_TENSORS = 10
SEARCH_SECONDS = 0.04
"""How long the search for live tensors may take: the program may be about to try again with less."""
CHECK_EVERY = 4096
REMEDY = remedy("oom")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception means that memory ran out, on a device or on the host."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


class OutOfMemory:
    """A context that records an out-of-memory error on its way out; it may be entered several times, also nested."""

    def __init__(self, run: Any, *models: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """Record into `run`; `models` give modules and parameters their names."""
        self._run, self._models, self._clock = run, Models(), clock
        self.attach(*models)
        self._depth = 0
        self._recorded: int | None = None

    def attach(self, *models: Any) -> None:
        """Know these models too."""
        for model in models:
            self._models.add(model)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._depth += 1
        self._recorded = None  # no error is on its way through us now; its id may belong to another one soon
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record an out-of-memory error; it goes on as it is."""
        self._depth -= 1
        if error is not None and is_out_of_memory(error) and self._recorded != id(error):
            self._recorded = id(error)
            self.record(error, trace)
        if not self._depth or error is None:
            self._recorded = None

    def record(self, error: BaseException, trace: TracebackType | None = None) -> None:
        """Record the event of an error that was caught elsewhere."""
        if not self._run.recording:
            return
        try:
            self._run.own_event("out_of_memory", **self._facts(error, trace or error.__traceback__))
        except Exception as second:  # noqa: BLE001 - there may be no memory left for this; the first error matters
            self._run.own_event("out_of_memory", error=type(error).__name__, incomplete=type(second).__name__)

    def _facts(self, error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
        frames = list(_frames(trace))
        text = str(error)
        known = self._known(frames)
        tensors = itertools.chain(known.values(), _live_tensors(self._clock))
        return {
            "cause": f"{type(error).__name__}: {text}"[:1000],
            "remedy": REMEDY,
            "wanted_bytes": wanted_bytes(text),
            "module": self._running(frames),
            "place": _place(frames),
            "allocator": _allocator(),
            "tensors": largest_tensors(tensors, {id(tensor): name for name, tensor in known.items()}),
        }

    def _running(self, frames: list[FrameType]) -> str | None:
        """Return the innermost module whose method is in the traceback, by its name in the model."""
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        for frame in reversed(frames):
            owner = frame.f_locals.get("self")
            if isinstance(owner, torch.nn.Module):
                found = (name for model in self._models for name, part in model.named_modules() if part is owner)
                name = next(found, None)
                kind = type(owner).__name__
                return f"{plain_name(name)} ({kind})" if name else kind
        return None

    def _known(self, frames: list[FrameType]) -> dict[str, Any]:
        """Return tensors with what they are called: as variables of the program, or as parameters of the models."""
        torch = sys.modules.get("torch")
        if torch is None:
            return {}
        found = {
            name: value
            for frame in frames
            for name, value in frame.f_locals.items()
            if issubclass(type(value), torch.Tensor)
        }
        for model in self._models:
            for name, parameter in model.named_parameters():
                found[plain_name(name)] = parameter
                if parameter.grad is not None:
                    found[f"{plain_name(name)}.grad"] = parameter.grad
        return found


def wanted_bytes(text: str) -> int | None:
    """Return how many bytes an error message says could not be had; None if it does not say."""
    found = WANTED.search(text)
    return int(float(found[1]) * UNITS[found[2]]) if found else None


def largest_tensors(tensors: Iterable[Any], names: dict[int, str]) -> list[dict[str, Any]]:
    """Return the tensors with the most memory behind them, once for each piece of memory."""
    best: dict[int, tuple[int, Any]] = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            place, size = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError, ValueError):  # sparse, fake and functional tensors have none
            place, size = id(tensor), 0
        if size and (place not in best or id(tensor) in names):
            best[place] = (size, tensor)
    order = sorted(best.values(), key=lambda entry: entry[0], reverse=True)[:MOST_TENSORS]
    return [
        {
            "bytes": size,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "device": str(tensor.device),
            "name": names.get(id(tensor)),
        }
        for size, tensor in order
    ]


def _live_tensors(clock: Callable[[], float]) -> Iterator[Any]:
    """Yield the tensors that Python knows of, as far as the time allows."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    deadline = clock() + SEARCH_SECONDS
    for count, thing in enumerate(gc.get_objects()):
        if issubclass(type(thing), torch.Tensor):  # not isinstance: a proxy would run code of its own
            yield thing
        if count % CHECK_EVERY == 0 and clock() > deadline:
            return


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _place(frames: list[FrameType]) -> str | None:
    """Return file and line of the innermost frame that is not torch's own."""
    own = [frame for frame in frames if "/torch/" not in frame.f_code.co_filename]
    return f"{own[-1].f_code.co_filename}:{own[-1].f_lineno} in {own[-1].f_code.co_name}" if own else None


def _allocator() -> list[dict[str, Any]]:
    """Return what the allocator holds of each GPU; empty where CUDA is not in use."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    segments = cuda.memory_snapshot()
    return allocator_summary(segments)


def allocator_summary(segments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return per GPU: bytes reserved, allocated and free inside, the largest free block, and the number of segments."""
    largest = largest_free(segments)
    found = []
    for index in sorted(largest):
        mine = [segment for segment in segments if int(segment.get("device", 0)) == index]
        reserved = sum(int(segment["total_size"]) for segment in mine)
        allocated = sum(int(segment["allocated_size"]) for segment in mine)
        found.append(
            {
                "device": index,
                "reserved_bytes": reserved,
                "allocated_bytes": allocated,
                "free_bytes": reserved - allocated,
                "largest_free_bytes": int(largest[index]),
                "segments": len(mine),
            }
        )
    return found
