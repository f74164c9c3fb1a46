"""When memory runs out, record the running module and the largest tensors as an event; the exception propagates.

No hook is needed: the running module is read from the traceback. Works for GPU and host memory. The GPU part is not
verified on hardware: the tests drive it with stand-ins.
"""

from __future__ import annotations

import gc
import itertools
import re
import sys
import time
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from stepscope.core.parameters import plain_name
from stepscope.core.remedies import remedy
from stepscope.core.walls import attempt
from stepscope.integrations.numerics.memory import largest_free, used_cuda
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
"""Time limit of the search for live tensors: the program may be about to retry with a smaller batch."""
CHECK_EVERY = 4096


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception means that memory ran out, on a device or on the host."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


class OutOfMemory:
    """A context that records an out-of-memory error that leaves it; it may be entered again, also nested."""

    def __init__(self, run: Any, *models: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """Record into `run`, with the names of modules and parameters in `models`."""
        self._run, self._models, self._clock = run, Models(), clock
        self.attach(*models)
        self._depth = 0
        self._recorded: int | None = None

    def attach(self, *models: Any) -> None:
        """Add models."""
        for model in models:
            self._models.add(model)

    def __enter__(self) -> Self:
        self._depth += 1
        self._recorded = None  # no error is propagating now, and another one may get the same id
        return self

    def __exit__(self, _kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        """Record an out-of-memory error, which propagates."""
        self._depth -= 1
        if error is not None and is_out_of_memory(error) and self._recorded != id(error):
            self._recorded = id(error)
            self.record(error, trace)
        if not self._depth or error is None:
            self._recorded = None

    def record(self, error: BaseException, trace: TracebackType | None = None) -> None:
        """Record an error that was caught elsewhere."""
        if not self._run.recording:
            return
        attempt(
            lambda: self._run.own_event("out_of_memory", **self._details(error, trace or error.__traceback__)),
            # There may be no memory left for the details.
            lambda second: self._run.own_event(
                "out_of_memory", error=type(error).__name__, incomplete=type(second).__name__
            ),
        )

    def _details(self, error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
        frames = [frame for frame, _ in walk_tb(trace)]
        torch, cuda = sys.modules.get("torch"), used_cuda()
        named = {} if torch is None else self._named_tensors(frames, torch.Tensor)
        tensors = itertools.chain(named.values(), _live_tensors(self._clock))
        return {
            "cause": f"{type(error).__name__}: {error}"[:1000],
            "remedy": remedy("oom"),
            "wanted_bytes": wanted_bytes(str(error)),
            "module": None if torch is None else self._running_module(frames, torch.nn.Module),
            "place": _place(frames),
            "allocator": [] if cuda is None else allocator_summary(cuda.memory_snapshot()),
            "tensors": largest_tensors(tensors, {id(tensor): name for name, tensor in named.items()}),
        }

    def _running_module(self, frames: list[FrameType], kind: type) -> str | None:
        """Return the name and class of the innermost module (an instance of `kind`) with a method in the traceback."""
        for frame in reversed(frames):
            owner = frame.f_locals.get("self")
            if isinstance(owner, kind):
                found = (name for model in self._models for name, part in model.named_modules() if part is owner)
                name, owner_class = next(found, None), type(owner).__name__
                return f"{plain_name(name)} ({owner_class})" if name else owner_class
        return None

    def _named_tensors(self, frames: list[FrameType], kind: type) -> dict[str, Any]:
        """Return tensors (instances of `kind`) by name: variables of the program, and parameters of the models."""
        variables = (pair for frame in frames for pair in frame.f_locals.items())
        found = {name: value for name, value in variables if issubclass(type(value), kind)}
        for model in self._models:
            for name, parameter in model.named_parameters():
                found[plain_name(name)] = parameter
                if parameter.grad is not None:
                    found[f"{plain_name(name)}.grad"] = parameter.grad
        return found


def wanted_bytes(text: str) -> int | None:
    """Return the bytes that could not be allocated, from an error message; None if it does not say."""
    found = WANTED.search(text)
    return int(float(found[1]) * UNITS[found[2]]) if found else None


def largest_tensors(tensors: Iterable[Any], names: dict[int, str]) -> list[dict[str, Any]]:
    """Return the tensors with the largest storage; tensors that share a storage count once."""
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
    """Yield the tensors that the garbage collector tracks, until the time limit."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    deadline = clock() + SEARCH_SECONDS
    for count, thing in enumerate(gc.get_objects()):
        if issubclass(type(thing), torch.Tensor):  # not isinstance: a proxy would run code of its own
            yield thing
        if count % CHECK_EVERY == 0 and clock() > deadline:
            return


def _place(frames: list[FrameType]) -> str | None:
    """Return file and line of the innermost frame outside torch."""
    own = [frame for frame in frames if "/torch/" not in frame.f_code.co_filename]
    return f"{own[-1].f_code.co_filename}:{own[-1].f_lineno} in {own[-1].f_code.co_name}" if own else None


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
