"""DDP's own timing of the gradient reduction, which happens inside the backward pass, in C++.

DDP times its first iterations and then one in a hundred. The part of the reduction that the backward pass does not hide
is the time a rank waits, for the network and for slower ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from stepscope.integrations.walls import Failures

if TYPE_CHECKING:
    from stepscope.integrations.torch.root_modules import Roots

ALL, EXPOSED = "communication/reduce_seconds", "communication/exposed_seconds"
OFTEN, RARELY = 32, 8
"""Number of first checks that each query DDP; later one in this many does."""


class Reductions:
    """Query the DDP models of a program in examined steps, and record into `run`."""

    def __init__(self, run: Any, roots: Roots) -> None:
        self._run, self._roots = run, roots
        self._checks = 0
        self._begun: dict[int, int] = {}
        self.failures = Failures(run, "reductions")

    def step_end(self, step: int | None) -> None:
        """Record what was measured since the last call."""
        if self.failures.over or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return
        self._checks += 1
        if self._checks > OFTEN and self._checks % RARELY:
            return
        with self.failures:
            for module in self._roots.modules:
                if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                    self._query(module, step)

    def _query(self, module: Any, step: int | None) -> None:
        timings = module._get_ddp_logging_data()  # noqa: SLF001 - there is no other clock inside DDP
        begun = timings.get("backward_comm_time_start", 0)
        if not begun or begun == self._begun.get(id(module)):
            return
        self._begun[id(module)] = begun
        spent, hidden = timings["backward_comm_time"], timings.get("backward_compute_comm_overlap_time", 0)
        self._run.log({ALL: spent / 1e9, EXPOSED: max(0, spent - hidden) / 1e9}, step=step)
