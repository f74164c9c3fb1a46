"""Places of a monitor where other parts are attached; what is not built yet is accepted, and said once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.recorder.complaints import Complaints


class HasNotices(Protocol):
    """An object that can tell its user something."""

    notices: Complaints


class NotBuilt:
    """Stands where a part is not built yet: false, and every method of it can be called and does nothing."""

    def __init__(self, name: str, effect: str, notices: Complaints) -> None:
        """Stand for the part `name`, whose absence has this effect."""
        self._name, self._effect, self._notices = name, effect, notices

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, method: str) -> Callable[..., None]:
        if method.startswith("__"):
            raise AttributeError(method)
        return self._ignore

    def __repr__(self) -> str:
        return f"<{self._name}: {self._effect}>"

    def _ignore(self, *_arguments: object, **_named: object) -> None:
        say_not_built(self._name, self._effect, self._notices)


class Attachment:
    """One such place. Whatever is put there is kept and given back."""

    def __init__(self, name: str, effect: str, *, stand_in: bool = True) -> None:
        """Describe the place by its name and by what does not happen yet; without a stand-in an empty one is None."""
        self._name, self._effect, self._stand_in = name, effect, stand_in

    def __get__(self, owner: HasNotices | None, _kind: type | None = None) -> Any:
        """Return what is attached, or a stand-in."""
        if owner is None:
            return self
        attached = owner.__dict__.get(self._name)
        if attached is None and self._stand_in:
            return NotBuilt(self._name, self._effect, owner.notices)
        return attached

    def __set__(self, owner: HasNotices, part: object) -> None:
        """Keep the part, and say that it has no effect yet."""
        owner.__dict__[self._name] = part
        if part is not None:
            say_not_built(self._name, self._effect, owner.notices)


def say_not_built(name: str, effect: str, notices: Complaints) -> None:
    """Say once that a part has no effect yet."""
    notices.say(name, f"{name} is accepted, but {effect}: this part is not built; the rest works without it")
