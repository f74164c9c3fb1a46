"""Failures of 512 simulated ranks: what each printed and how it ended, with the ranks that really began it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench import failure_texts as texts
from stepscope.analysis.first_error.evidence import EndedRank, ErrorEvidence, Skew
from stepscope.core.console_line import ConsoleLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

RANKS, PER_NODE = 512, 8
BEGIN, FAILS = 1_790_000_000.0, 1_790_001_200.0
"""When the job began and failed, on the clock of the first node."""
STEP_SECONDS, LAST_STEP = 0.5, 2400
SCREEN = 24
"""Progress lines of a rank before the failure."""


@dataclass(frozen=True)
class Failure:
    """One case: its name, its evidence, and the truth."""

    name: str
    evidence: ErrorEvidence
    ranks: frozenset[int]
    """The ranks that began it."""
    kinds: frozenset[str]
    """The kinds that are right."""


@dataclass
class Job:
    """A job while it is drawn; times are on the clock of the first node until it is done."""

    random: np.random.Generator
    ranks: int = RANKS
    printed: dict[int, list[tuple[float, str, str, int | None]]] = field(default_factory=dict)
    """Time, stream, text and step of each line, by rank."""
    ends: dict[int, EndedRank] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    has_events: bool = False
    has_prefix: bool = True
    is_merged: bool = False
    """Whether the ranks print to a terminal, where both streams are one."""
    is_mixed: bool = False
    """Whether another thread prints in the middle of a traceback."""
    launcher: list[str] = field(default_factory=list)
    """What the launcher prints instead of torchrun's report."""

    def node(self, rank: int) -> str:
        """Return the name of a rank's node."""
        return f"node-{rank // PER_NODE}"

    def say(self, rank: int, time: float, lines: Sequence[str], stream: str = "err", *, prefix: bool = True) -> None:
        """Print lines, a tenth of a millisecond apart."""
        head = f"[rank{rank}]: " if self.has_prefix and prefix and lines and lines[0].startswith("Trace") else ""
        step = self.step(time)
        if self.is_mixed and len(lines) > 6:
            lines = [*lines[:3], "prefetch:  98%|█████████▊| 127/130 [00:41<00:00,  3.1it/s]", *lines[3:]]
        rows = [(time + at * 1e-4, stream, head + line if line else line, step) for at, line in enumerate(lines)]
        self.printed.setdefault(rank, []).extend(rows)

    def step(self, time: float) -> int:
        """Return the step at a time; none is made after the failure."""
        return min(LAST_STEP, int((time - BEGIN) / STEP_SECONDS))

    def end(self, rank: int, time: float | None, state: str, cause: str, *, inferred: bool = False) -> None:
        """Set how a rank ended."""
        self.ends[rank] = EndedRank(rank, self.node(rank), state, cause, time, inferred, LAST_STEP)

    def fail(self, rank: int, time: float, lines: Sequence[str], delay: float = 0.0) -> None:
        """Let a rank end with a traceback; it is printed `delay` seconds late."""
        self.say(rank, time + delay, lines)
        self.end(rank, time + 0.05, "failed", "exit code 1")
        if self.has_events:
            error = next((line for line in reversed(lines) if line[:1].isalpha() and ":" in line), lines[-1])
            self.errors.append({"rank": rank, "time": time, "error": error, "traceback": "\n".join(lines)})

    def stream(self, stream: str) -> str:
        """Return the stream as it is kept."""
        return "" if self.is_merged else stream

    def others(self, *ranks: int) -> list[int]:
        """Return all ranks but these."""
        return [rank for rank in range(self.ranks) if rank not in ranks]

    def background(self) -> None:
        """Print what healthy ranks print: progress, bars, warnings, and errors that were caught long before."""
        for rank in range(self.ranks):
            if self.random.random() < 0.3:
                self.say(rank, BEGIN + 2, [texts.any_of(self.random, texts.WARNINGS)], prefix=False)
            if self.random.random() < 0.02:
                self.say(rank, BEGIN + 60 + 400 * self.random.random(), texts.caught(), prefix=False)
            for at in range(SCREEN):
                when = FAILS - (SCREEN - at) * 10 * STEP_SECONDS
                step = self.step(when)
                if at % 8 == 3:
                    bar = f"train:  {at * 4}%|{'█' * (at // 3)}  | {step}/5000 [10:02<12:31,  1.93it/s]"
                    self.say(rank, when, [bar], prefix=False)
                self.say(rank, when, [f"step {step} | loss {2.5 - at / 100:.3f} | 498.2 ms"], "out")

    def collapse(self, guilty: Sequence[int], at: float, *, launcher: bool = True) -> None:
        """Let all other ranks fail because of the guilty ones: some lose a peer, some wait, most are ended."""
        killed = {rank // PER_NODE for rank in guilty}
        for rank in self.others(*guilty):
            soon = at + 0.02 + float(self.random.exponential(0.4))
            draw = self.random.random()
            if rank // PER_NODE in killed and draw > 0.2 and launcher:
                self.end(rank, at + 1.0, "killed", "killed by SIGTERM")
            elif draw < 0.3:
                self.timeout(rank, at + 600 + float(self.random.random()))
            elif draw < 0.45:
                self.end(rank, soon + 1, "failed", "exit code 1")
                self.say(rank, soon, texts.signalled())
            elif draw < 0.7:
                self.lose(rank, soon)
            else:
                self.say(rank, soon + 2, texts.store_gone(rank), prefix=False)
                self.end(rank, soon + 3, "killed", "killed by SIGTERM")

    def lose(self, rank: int, at: float) -> None:
        """Let a rank notice that a peer is gone."""
        shape = int(self.random.integers(3))
        lines = (texts.nccl_remote(), texts.gloo_closed(), texts.gloo_closed("Connection reset by peer"))[shape]
        if self.random.random() < 0.1:
            lines = texts.in_collective(texts.any_of(self.random, texts.UNKNOWN_LOSSES))
        self.fail(rank, at, lines)

    def timeout(self, rank: int, at: float) -> None:
        """Let a rank wait until its time runs out."""
        if self.random.random() < 0.2:
            self.fail(rank, at, texts.gloo_timeout())
        else:
            self.say(rank, at, texts.watchdog(rank), prefix=False)
            self.end(rank, at + 0.3, "killed", "killed by SIGABRT, with a core dump")

    def done(self, name: str, guilty: Sequence[int], kinds: Sequence[str], named: int | None = None) -> Failure:
        """Return the case, with the clocks of the nodes shifted, and their offsets known roughly."""
        random = self.random
        shift = {self.node(rank): float(random.uniform(-30, 30)) for rank in range(0, self.ranks, PER_NODE)}
        shift[self.node(0)] = 0.0
        spread = float(random.choice([0.005, 0.05, 0.5]))
        skews = {node: Skew(by + float(random.uniform(-spread, spread)), spread) for node, by in shift.items()}
        skews[self.node(0)] = Skew(0.0, 0.0)
        lines: dict[int, list[ConsoleLine]] = {}
        for rank, rows in self.printed.items():
            node = self.node(rank)
            rows.sort(key=lambda row: row[0])
            lines[rank] = [
                ConsoleLine(time + shift[node], rank, 0, node, at, self.stream(stream), text, step=step)
                for at, (time, stream, text, step) in enumerate(rows)
            ]
        first = named if named is not None else guilty[0]
        table = self.launcher or texts.table("train.py", first, 1, first % PER_NODE)
        lines[-1] = [ConsoleLine(FAILS + 30, -1, 0, "node-0", at, "err", text) for at, text in enumerate(table)]
        ends = [
            end if end.ended is None else replace(end, ended=end.ended + shift[end.node]) for end in self.ends.values()
        ]
        errors = [{**one, "time": one["time"] + shift[self.node(int(one["rank"]))]} for one in self.errors]
        evidence = ErrorEvidence(lines, ends, errors, skews, self.ranks)
        return Failure(name, evidence, frozenset(guilty), frozenset(kinds))
