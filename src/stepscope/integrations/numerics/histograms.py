"""Histograms of parameters and gradients, on request, without waiting for the device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from stepscope.integrations.numerics.gradient_norm import local_part
from stepscope.integrations.numerics.readback import Readback

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_ELEMENTS = 1 << 16
"""Elements sampled from one tensor, evenly spaced by rows."""
MOST_TENSORS = 512


class HistogramRequest:
    """Take what was asked for at one optimizer step, and record it when it has come to the host."""

    def __init__(self, run: Any) -> None:
        """Record into `run`."""
        self._run = run
        self.asked = False
        self._parameters = self._gradients = False
        self._flights: list[tuple[Readback[str], int | None]] = []

    def ask(self, *, parameters: bool, gradients: bool) -> None:
        """Ask for the next step's."""
        self._parameters, self._gradients = parameters, gradients
        self.asked = parameters or gradients

    def take(self, parameters: Sequence[Any], names: Sequence[str], parts: Sequence[str]) -> None:
        """Copy an even choice of the elements: `parameters/<name>`, `gradients/<name>`; those absent are left out."""
        self.asked = False
        chosen = [
            (name, each)
            for name, each in zip(names, parameters, strict=True)
            if not parts or any(part in name for part in parts)
        ]
        for name, each in chosen[:MOST_TENSORS]:
            if self._parameters:
                self._send(f"parameters/{name}", each)
            if self._gradients and each.grad is not None:
                self._send(f"gradients/{name}", each.grad)

    def _send(self, name: str, tensor: Any) -> None:
        local, _ = local_part(tensor.detach())
        if local is None or not local.numel():
            return
        stride = math.ceil(local.numel() / MOST_ELEMENTS)
        view = local[::stride] if stride > 1 and local.dim() else local
        flight: Readback[str] = Readback()  # one each: many are on their way at once
        flight.send(view, name)
        self._flights.append((flight, None))

    def record(self) -> None:
        """Record those that have arrived; to be called at the end of each step."""
        waiting = []
        for flight, step in self._flights:
            at = self._run.step_index if step is None else step
            for host, name in flight.arrived():
                self._run.histogram(name, host, step=at)
            if len(flight):
                waiting.append((flight, at))
        self._flights = list(waiting)
