"""The planted stragglers and the healthy jobs."""

from __future__ import annotations

from typing import NamedTuple

CLASSES = {
    **dict.fromkeys(("compute", "backward", "optimizer", "hog"), "compute"),
    **dict.fromkeys(("data", "tenth"), "data"),
    **dict.fromkeys(("host", "gc"), "host"),
    "link": "link",
    "work": "work",
}
"""The class of cause that each kind must get."""


class Case(NamedTuple):
    """One job, and who is late in it."""

    kind: str
    ranks: int
    late: tuple[int, ...] = ()
    by: str = "hand"
    steps: int = 60
    per_node: int = 8
    since: int = 0

    @property
    def name(self) -> str:
        """Its name, which is the id of its run, too."""
        who = "-".join(map(str, self.late)) or "none"
        more = f"-{self.ranks // self.per_node}nodes" if self.per_node < self.ranks else ""
        return f"{self.kind or 'healthy'}-{self.by}-{self.ranks}-{who}{more}"


PLANTED = (
    *(Case("data", ranks, (ranks - 1,)) for ranks in (2, 4, 8)),
    *(Case("compute", ranks, (ranks // 2,)) for ranks in (2, 4, 8)),
    *(Case("data", ranks, (0,), "watch") for ranks in (2, 4, 8)),
    *(Case("compute", ranks, (1,), "watch") for ranks in (2, 4, 8)),
    *(Case("work", ranks, (1,)) for ranks in (4, 8)),
    *(Case("link", ranks, (2,)) for ranks in (4, 8)),
    *(Case("host", ranks, (3,)) for ranks in (4, 8)),
    Case("host", 4, (2,), "watch"),
    Case("gc", 4, (1,)),
    Case("gc", 4, (1,), "watch"),
    *(Case("hog", ranks, (1,)) for ranks in (2, 4)),
    Case("backward", 4, (2,)),
    Case("optimizer", 4, (2,)),
    Case("tenth", 4, (3,), steps=120),
    Case("compute", 8, (4, 5, 6, 7), per_node=4),
    Case("data", 8, (1, 6)),
    Case("compute", 8, (5,), steps=120, since=70),
)
HEALTHY = (
    *(Case("", ranks) for ranks in (2, 4, 8)),
    *(Case("", ranks, by="watch") for ranks in (2, 4, 8)),
    *(Case(kind, 4) for kind in ("checkpoint", "evaluation", "logging", "turns", "warmup", "last_batch", "noise")),
    Case("busy", 4),
    Case("noise", 8),
    Case("logging", 4, by="watch"),
)
