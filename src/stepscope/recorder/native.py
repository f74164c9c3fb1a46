"""The hot path in C, if it was built; see `_hot.c`."""

from __future__ import annotations

from typing import Any

from stepscope.recorder.automatic import AutomaticSteps
from stepscope.recorder.hotpath import Phase, Recorder, Step
from stepscope.recorder.state import MODULE, PURE, compiled

__all__ = ["PURE", "available", "in_place", "is_used", "settle", "use"]

CLASSES = (Recorder, Step, Phase, AutomaticSteps)
NAMES = (
    ("log", "_write", "phase", "step", "_end_step"),
    ("__enter__", "__exit__"),
    ("__enter__", "__exit__"),
    ("note",),
)
CLOCK_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
PYTHON = tuple({name: vars(owner)[name] for name in names} for owner, names in zip(CLASSES, NAMES, strict=True))
"""The methods in their Python version."""


def available() -> Any:
    """Return the C module; None if it was not built for this interpreter, or is disabled."""
    return MODULE and compiled()


def use(module: Any) -> bool:
    """Install the methods of the C module, or those in Python if it is None; return which are installed."""
    for owner, methods in zip(CLASSES, PYTHON, strict=True):
        _put(owner, methods)
    if module is not None:
        module.trust_counter(keeps_time_by_counter())
        for owner, methods in zip(CLASSES, module.twins(*CLASSES), strict=True):
            _put(owner, methods)
    return module is not None


def keeps_time_by_counter(source: str = CLOCK_SOURCE) -> bool:
    """Return whether the kernel's clock is the processor's counter, which is then the same on all cores."""
    try:
        with open(source, "rb") as file:
            return file.read(16).strip() == b"tsc"
    except OSError:  # hidden in a container, or another kernel: use the clock
        return False


def settle() -> None:
    """Install the C methods if there are any and they are not installed yet."""
    if not is_used():
        module = available()
        if module is not None:
            use(module)


def is_used() -> bool:
    """Return whether the C methods are installed."""
    return vars(Recorder)["log"] is not PYTHON[0]["log"]


def in_place() -> Any:
    """Return the C module if its methods are installed; else None."""
    return available() if is_used() else None


def _put(owner: type, methods: dict[str, Any]) -> None:
    for name, method in methods.items():
        setattr(owner, name, method)
