"""What the hot path hands over: input that is new, rare or not a plain number. `intake` handles it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from stepscope.recorder.declarations import Layout

RecorderT_contra = TypeVar("RecorderT_contra", contravariant=True)
PhaseT = TypeVar("PhaseT")


class SlowPath(Protocol[RecorderT_contra, PhaseT]):
    """The slow half of a recorder, as the hot path sees it. What it learns makes the next call fast."""

    layouts: dict[tuple[Any, ...], Layout]
    """By the names of a row."""
    plain: set[type]
    """Number types that are written without conversion."""
    phases: dict[str, PhaseT]
    step_layouts: dict[tuple[Any, ...], Layout]
    """By the phases of a step in order, and whether it has samples."""

    def take(self, recorder: RecorderT_contra, values: Any, step: Any, now: int) -> None:
        """Record a call of `log` that the hot path could not."""

    def join(self, recorder: RecorderT_contra, values: Any, more: dict[str, Any]) -> dict[Any, Any]:
        """Return the arguments of a `log` call as one dict."""
        ...

    def doubt(self, error: Exception) -> bool:
        """Return whether the row is plain although adding its values raised this."""
        ...

    def settle(self, recorder: RecorderT_contra) -> bool:
        """Write the device values that have arrived; return whether more are pending."""
        ...

    def index(self, recorder: RecorderT_contra, index: Any) -> int | None:
        """Return the index of a step; None if it is invalid."""

    def phase(self, recorder: RecorderT_contra, name: Any) -> PhaseT:
        """Return the context of a phase that is used for the first time."""
        ...

    def step_layout(self, key: tuple[Any, ...]) -> Layout:
        """Return the layout of a step's row."""
        ...

    def number(self, value: Any) -> float:
        """Return `samples` as a float; NaN if it is invalid."""
        ...

    def look(self, words: memoryview, now: int) -> int:
        """Check the watcher and print its messages; return when to check again, in ns."""
        ...

    def refuse(self, error: Exception) -> None:
        """Complain about a number that does not fit."""
