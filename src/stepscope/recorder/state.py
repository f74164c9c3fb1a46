"""The state of the hot path: unboxed in C if the C version was built (`_state.h`), else as Python objects."""

from __future__ import annotations

import importlib
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

PURE = "STEPSCOPE_PURE"
"""Environment variable: if set, only Python runs in the training."""


def compiled() -> Any:
    """Return the C module; None if it was not built for this interpreter, or is disabled."""
    if os.environ.get(PURE):
        return None
    try:
        return importlib.import_module("stepscope.recorder._hot")
    except ImportError:
        return None


class _State:
    """What the hot path reads and moves."""

    __slots__ = (
        *("_awaiting", "_counting", "_due", "_head", "_index", "_limit", "_mark", "_sequence", "_shared", "_shift"),
        *("_thread", "recording", "_current", "_intake", "_layouts", "_phases", "_side", "_spent", "_stack", "_step"),
        *("_step_layouts", "_tokens", "_words"),
    )
    _awaiting: bool
    _counting: bool
    _shared: bool
    recording: bool
    _stack: list[str]
    _due: int
    _head: int
    _index: int
    _limit: int
    _mark: int
    _sequence: int
    _shift: int
    _thread: int

    def _hold(self, memory: Any) -> None:
        """Do nothing: only the C version holds the ring's memory."""


class _Spent(defaultdict[str, int]):
    """Nanoseconds by phase of the current step; a new phase has 0."""

    def __init__(self) -> None:
        super().__init__(int)


MODULE: Any = compiled()
if TYPE_CHECKING:
    State = _State
    Spent = _Spent
else:
    State, Spent = (_State, _Spent) if MODULE is None else (MODULE.State, MODULE.Spent)
