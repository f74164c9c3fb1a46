"""The table of settings: every key with its kind, default, unit and meaning; other spellings; implied defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.core.kinds import ValueKind

SECTIONS: Mapping[str, str] = {
    "recorder": "what the training process records, and how much memory it uses for it",
    "samplers": "what is sampled on the machine",
    "watcher": "the watcher process that runs next to the training",
    "store": "the runs on disk",
    "alerting": "which alerts fire, and who is notified",
    "exporters": "other tools that receive the metrics",
    "web": "the web page",
    "callbacks": "options of the Lightning callbacks",
    "ledger": "what a run costs: prices and energy",
    "targets": "target values to compare a run with: metric name and number",
}
"""Every section, in the order of the documentation."""


class Key(NamedTuple):
    """One setting."""

    path: str
    type: ValueKind
    default: object
    unit: str
    """Unit of the value, or "" where it has none."""
    help: str
    """One line for people."""
    minimum: float | None = None
    maximum: float | None = None
    secret: bool = False
    """The value is never shown in messages."""

    def parse(self, value: object) -> object:
        """Return the value as plain data, or raise ValueError with the problem."""
        parsed = self.type.parse(value)
        low, high = self.minimum, self.maximum
        if isinstance(parsed, (int, float)):
            if low is not None and parsed < low:
                raise ValueError(f"below the least allowed, {self.type.show(low)}")
            if high is not None and parsed > high:
                raise ValueError(f"above the most allowed, {self.type.show(high)}")
        return parsed


class KeyAlias(NamedTuple):
    """Another accepted spelling of a key."""

    path: str
    target: str
    convert: Callable[[object], object] | None = None
    """Turn the value of this spelling into one for the target, or raise ValueError."""
    note: str = ""
    """The effect of the conversion, for the documentation."""


class Implication(NamedTuple):
    """A setting that, when set, changes the defaults of others; explicit settings stay unchanged."""

    path: str
    holds: Callable[[object], bool]
    implied: Mapping[str, object]
    note: str


@dataclass
class SettingsSchema:
    """All known settings. Later aliases and implications win over earlier ones."""

    keys: Mapping[str, Key]
    aliases: Mapping[str, KeyAlias] = field(default_factory=dict)
    """Where two aliases set the same key in one file, the later one wins."""
    implications: Sequence[Implication] = ()
    free_sections: Mapping[str, ValueKind] = field(default_factory=dict)
    """Sections whose keys people name themselves, such as metrics, with the kind of their values."""

    def kind(self, path: str) -> ValueKind | Key | None:
        """Return what parses the value at a path; None if there is no such setting."""
        section, _, name = path.partition(".")
        return self.keys.get(path) or (self.free_sections.get(section) if all(name.split(".")) else None)

    def paths(self) -> list[str]:
        """Return every path that can be set, in all spellings."""
        return [*self.keys, *self.aliases]

    def below(self, path: str) -> str | None:
        """Return the first known path below this one; None if it is not a section."""
        return next((known for known in self.paths() if known.startswith(f"{path}.")), None)
