"""What a reader of foreign files has to say about what it left out."""

from __future__ import annotations

from collections import Counter, defaultdict

NAMES_SHOWN = 8
"""Names that a note lists."""
MOST_NAMES = 1000
"""Names that are counted one by one."""


class Notes:
    """Notes for people; the same one twice is counted."""

    def __init__(self) -> None:
        """Begin without any."""
        self._notes: Counter[str] = Counter()
        self._left_out: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def note(self, text: str) -> None:
        """Keep a note."""
        self._notes[text] += 1

    def leave_out(self, what: str, name: str, count: int = 1) -> None:
        """Count values that are not kept.

        Args:
            what: why, as the beginning of a sentence: `text`.
            name: the name that the source gives them.
            count: how many they are.
        """
        names = self._left_out[what]
        names[name if name in names or len(names) < MOST_NAMES else "…"] += count

    def notes(self) -> tuple[str, ...]:
        """Return the notes; those that came more than once with their count."""
        told = (text if count == 1 else f"{text} ({count} times)" for text, count in self._notes.items())
        return (*told, *(_listed(what, names) for what, names in self._left_out.items()))


def _listed(what: str, names: Counter[str]) -> str:
    shown = ", ".join([name if len(name) <= 60 else f"{name[:57]}..." for name in list(names)[:NAMES_SHOWN]])
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    total = names.total()
    return f"{what}, left out: {shown}{more} ({total} {'value' if total == 1 else 'values'})"
