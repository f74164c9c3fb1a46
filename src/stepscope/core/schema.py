"""The table of settings: every key with its kind, default, unit and meaning; its aliases; implied defaults.

Keys of parts that are not built yet are *planned*: they are checked and stored, and reported to have no effect.
The change that builds a part registers its section with `Schema.register`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.core.kinds import Kind

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
    type: Kind
    default: object
    unit: str
    """Unit of the value, or "" where it has none."""
    help: str
    """One line for people."""
    status: Literal["built", "planned"] = "built"
    minimum: float | None = None
    maximum: float | None = None
    secret: bool = False
    """The value is never shown in messages."""

    def parse(self, value: object) -> object:
        """Return the value as plain data, or raise ValueError with what is wrong."""
        parsed = self.type.parse(value)
        low, high = self.minimum, self.maximum
        if isinstance(parsed, (int, float)):
            if low is not None and parsed < low:
                raise ValueError(f"below the least allowed, {self.type.show(low)}")
            if high is not None and parsed > high:
                raise ValueError(f"above the most allowed, {self.type.show(high)}")
        return parsed


class Alias(NamedTuple):
    """Another accepted spelling of a key."""

    path: str
    target: str
    convert: Callable[[object], object] | None = None
    """Turn the value of this spelling into one for the target, or raise ValueError."""
    note: str = ""
    """What the conversion does, for the documentation."""


class Implication(NamedTuple):
    """A setting that, when set, changes the defaults of others; what is set explicitly stays as it is."""

    path: str
    holds: Callable[[object], bool]
    implied: Mapping[str, object]
    note: str


@dataclass
class Schema:
    """All known settings. Later aliases and implications win over earlier ones."""

    keys: dict[str, Key] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)
    implications: list[Implication] = field(default_factory=list)
    open_sections: set[str] = field(default_factory=set)
    """Sections of parts not built yet: keys that nobody registered are stored there as they are."""
    free_sections: dict[str, Kind] = field(default_factory=dict)
    """Sections whose keys people name themselves, such as metrics; the values are of one kind."""

    def plan(self, keys: Iterable[Key], *, open_sections: Iterable[str] = ()) -> None:
        """Add keys of parts that are not built yet, and name the sections that are not closed yet."""
        self.keys.update({key.path: key for key in keys})
        self.open_sections.update(open_sections)

    def register(self, section: str, keys: Iterable[Key]) -> None:
        """Add the keys of a part that is built and close its section to unknown keys.

        Raises:
            ValueError: a key lies outside the section, is no setting below it, or was registered before.
        """
        for key in keys:
            known = self.keys.get(key.path)
            if not key.path.startswith(f"{section}.") or (known is not None and known.status == "built"):
                raise ValueError(f"the key '{key.path}' cannot be registered in section '{section}'")
            self.keys[key.path] = key
        self.open_sections.discard(section)

    def free(self, section: str, kind: Kind) -> None:
        """Let people name the keys of a section themselves; its values are of this kind."""
        self.free_sections[section] = kind
        self.open_sections.discard(section)

    def free_kind(self, path: str) -> Kind | None:
        """Return the kind of a value at a path that people have named themselves; None if it is none of these."""
        return self.free_sections.get(path.partition(".")[0])

    def alias(self, *aliases: Alias) -> None:
        """Add other spellings; where two set the same key in one file, the one added later wins."""
        self.aliases.update({alias.path: alias for alias in aliases})

    def imply(self, *implications: Implication) -> None:
        """Add implications."""
        self.implications.extend(implications)

    def paths(self) -> list[str]:
        """Return every path that can be set, in all spellings."""
        return [*self.keys, *self.aliases]

    def below(self, path: str) -> str | None:
        """Return the first known path below this one, or None: what has keys below it is a section."""
        return next((known for known in self.paths() if known.startswith(f"{path}.")), None)

    def is_open(self, path: str) -> bool:
        """Return whether a key that nobody registered may be stored at this path."""
        parts = path.split(".")
        above = (".".join(parts[:end]) for end in range(1, len(parts)))
        return (
            len(parts) > 1
            and (parts[0] in self.open_sections or parts[0] in self.free_sections)
            and all(parts)
            and not any(parent in self.keys for parent in above)
        )
