"""What a reader of foreign files has to say about what it left out."""

from __future__ import annotations

from collections import Counter


class Notes:
    """Notes for people; the same one twice is counted."""

    def __init__(self) -> None:
        """Begin without any."""
        self._notes: Counter[str] = Counter()

    def note(self, text: str) -> None:
        """Keep a note."""
        self._notes[text] += 1

    def notes(self) -> tuple[str, ...]:
        """Return the notes; those that came more than once with their count."""
        return tuple(text if count == 1 else f"{text} ({count} times)" for text, count in self._notes.items())
