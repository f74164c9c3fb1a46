"""What the sender has to know: its first and only line of input, because a command line would show secrets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class SenderBrief:
    """The run to send, and where to."""

    run: str
    node: str
    settings: dict[str, Any] = field(default_factory=dict)
    """By path, as in the configuration."""

    def line(self) -> bytes:
        """Return the brief as a line."""
        return json.dumps(self.__dict__).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> SenderBrief:
        """Parse a brief; ValueError or TypeError if it is invalid."""
        return cls(**json.loads(line))
