"""Histograms of parameters and gradients, on request, without waiting for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.numerics.gradient_norm import local_part, sampled
from stepscope.integrations.numerics.readback import Readback

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_ELEMENTS = 1 << 16
"""Elements sampled from one tensor, evenly spaced by rows."""
MOST_TENSORS = 512


class HistogramRequest:
    """Sample the requested tensors at one optimizer step, and record them when they have arrived on the host."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.asked = False
        self._parameters = self._gradients = False
        self._flights: list[tuple[Readback[str], int | None]] = []

    def ask(self, *, parameters: bool, gradients: bool) -> None:
        """Request histograms of the next step."""
        self._parameters, self._gradients = parameters, gradients
        self.asked = parameters or gradients

    def take(self, parameters: Sequence[Any], names: Sequence[str], parts: Sequence[str]) -> None:
        """Start the copies, named `parameters/<name>` and `gradients/<name>`; missing gradients are left out."""
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
        flight: Readback[str] = Readback()  # one each: more are on their way at once than a readback sends
        flight.send(sampled(local, MOST_ELEMENTS), name)
        self._flights.append((flight, None))

    def record(self) -> None:
        """Record those that have arrived; called at the end of each step."""
        flights, self._flights = self._flights, []
        for flight, step in flights:
            at = self._run.step_index if step is None else step
            for host, name in flight.arrived():
                self._run.histogram(name, host, step=at)
            if len(flight):
                self._flights.append((flight, at))
