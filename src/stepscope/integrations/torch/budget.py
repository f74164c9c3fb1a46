"""Keep the cost of the instrumentation within its budget: it measures itself periodically, and thins out.

Every SAMPLE-th measured step the hooks time themselves. Above the budget only every second, fourth, … step is measured,
in groups of GROUP: the others have their duration and no phases. Far below it more are measured again. The first
minutes show what a training is like: after RICH samples the hooks spend only a part of the budget. At the very start
they may spend more, but only OPENING_NS in total, so that a run of one second can be diagnosed too.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE = 9
"""Measured steps between two in which the hooks time themselves."""
GROUP = 4
"""Consecutive steps that are measured if not all are: switching costs as much as measuring one."""
CALL_NS = 16_000
"""Cost of one hook outside of itself, in ns: the caller's plumbing, and cold caches after the step's kernels.

Measured by bench/torch_loop.py on a slow virtual machine; elsewhere it is less, and more steps could be measured.
"""
SWITCH_NS = 240_000
"""Cost of switching the hooks on and off between measured and unmeasured steps, in ns."""
WIDEST = 64
KEPT = 5
"""Number of samples whose median counts, because a single one may have been interrupted."""


OPENING_NS, OPENING = 100_000_000, 0.1
"""What the hooks may spend once per run, whatever the budget (except 0), in ns; and as a share of a step meanwhile."""
RICH = 100
"""Samples after which a training is known."""
LATER = 0.1
"""Part of the budget that is used from then on."""


class Budget:
    """Decides which steps are measured, so that the hooks stay within a share of the step."""

    def __init__(self, share: float, on_change: Callable[[int, float], None] = lambda _every, _cost: None) -> None:
        """Allow `share` of a step's time; `on_change` is called with a new interval and the cost."""
        self.share, self._on_change = share, on_change
        self.every = 1
        """One in this many steps is measured."""
        self.cost = 0.0
        """Cost of a measured step, in ns."""
        self._samples: deque[tuple[int, int]] = deque(maxlen=KEPT)
        self.weighed = 0
        """Steps in which the hooks have timed themselves."""
        self._opening = OPENING_NS if share > 0 else 0

    def weigh(self, spent: int, elapsed: int) -> None:
        """Account for `spent` ns of hooks in a step of `elapsed` ns; measure more or fewer steps from now on."""
        self.weighed += 1
        self._opening -= spent * (SAMPLE if self.every == 1 else GROUP)
        allowed = self.share * (LATER if self.weighed > RICH else 1)
        if self._opening > 0:
            allowed = max(allowed, OPENING)
        self._samples.append((spent, max(elapsed, 1)))
        self.cost = median(spent for spent, _ in self._samples)
        share = self.cost / median(elapsed for _, elapsed in self._samples)
        switch = SWITCH_NS * share / max(self.cost, 1)
        wanted = self.every
        while wanted < WIDEST and (share + switch * (wanted > 1) / GROUP) / wanted > allowed:
            wanted *= 2
        while wanted > 1 and share / (wanted // 2) < allowed / 2:
            wanted //= 2
        if wanted != self.every:
            self.every = wanted
            self._on_change(wanted, share)
