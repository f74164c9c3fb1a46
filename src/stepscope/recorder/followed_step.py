"""Steps with followers: a separate object, so that a step without followers costs nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stepscope.recorder.hotpath import Step

if TYPE_CHECKING:
    from stepscope.recorder.hotpath import Recorder


class Follower(Protocol):
    """Notified when a step has ended; neither method may raise."""

    def step_ended(self) -> None:
        """Act on the end of a step; the training thread calls this after the step was recorded."""

    def run_ended(self) -> None:
        """Act on the end of the run; this is called before its last rows, and no more steps will come."""


class FollowedStep(Step):
    """The context of a training step, with followers."""

    __slots__ = ("_followers",)

    def __init__(self, recorder: Recorder, followers: tuple[Follower, ...]) -> None:
        """Notify these followers of every end."""
        super().__init__(recorder)
        self._followers = followers

    def __exit__(self, *_: object) -> None:
        """Record the step, then notify its followers; their time is charged to the next step."""
        super().__exit__()
        for follower in self._followers:
            follower.step_ended()


def make_step(recorder: Recorder, followers: tuple[Follower, ...]) -> Step:
    """Return the context of a recorder's steps; one that asks its recorder for the followers stays."""
    before = getattr(recorder, "_step", None)
    if getattr(before, "asks", False):
        return before  # type: ignore[return-value]
    return FollowedStep(recorder, followers) if followers else Step(recorder)
