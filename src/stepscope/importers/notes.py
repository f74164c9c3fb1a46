"""Notes on what a reader of foreign files left out."""

from __future__ import annotations

from collections import Counter, defaultdict

NAMES_SHOWN = 8
"""Maximum names in a note."""
MOST_NAMES = 1000
"""Maximum names that are counted separately."""


class Notes:
    """Notes for people; repeated ones are counted."""

    def __init__(self) -> None:
        """Start empty."""
        self._notes: Counter[str] = Counter()
        self._left_out: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def note(self, text: str) -> None:
        """Add a note."""
        self._notes[text] += 1

    def leave_out(self, what: str, name: str, count: int = 1) -> None:
        """Count values that are not kept.

        Args:
            what: why, as the start of a sentence: `text`.
            name: the source's name for them.
            count: how many there are.
        """
        names = self._left_out[what]
        names[name if name in names or len(names) < MOST_NAMES else "…"] += count

    def notes(self) -> tuple[str, ...]:
        """Return the notes; repeated ones with their count."""
        told = (text if count == 1 else f"{text} ({count} times)" for text, count in self._notes.items())
        return (*told, *(_listed(what, names) for what, names in self._left_out.items()))


def _listed(what: str, names: Counter[str]) -> str:
    shown = ", ".join([name if len(name) <= 60 else f"{name[:57]}..." for name in list(names)[:NAMES_SHOWN]])
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    total = names.total()
    return f"{what}, left out: {shown}{more} ({total} {'value' if total == 1 else 'values'})"
