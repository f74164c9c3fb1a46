"""Steps whose ends somebody follows: an object of its own, so that a step nobody follows costs nothing more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stepscope.recorder.hotpath import Step

if TYPE_CHECKING:
    from stepscope.recorder.hotpath import Recorder


class Follower(Protocol):
    """Who wants to know when a step has ended; neither method may raise."""

    def step_ended(self) -> None:
        """Take note; called by the thread that trains, after the step was recorded."""

    def run_ended(self) -> None:
        """Take note that no step will come; called before the run's last words."""


class FollowedStep(Step):
    """The context of a training step, with followers."""

    __slots__ = ("_followers",)

    def __init__(self, recorder: Recorder, followers: tuple[Follower, ...]) -> None:
        """Tell these followers of every end."""
        super().__init__(recorder)
        self._followers = followers

    def __exit__(self, *_: object) -> None:
        """Record the step, then tell its followers; what they do is charged to the next step."""
        super().__exit__()
        for follower in self._followers:
            follower.step_ended()


def make_step(recorder: Recorder, followers: tuple[Follower, ...]) -> Step:
    """Return the context of the steps of a recorder; one that asks its recorder for the followers stays."""
    before = getattr(recorder, "_step", None)
    if getattr(before, "asks", False):
        return before  # type: ignore[return-value]
    return FollowedStep(recorder, followers) if followers else Step(recorder)
