"""Where a rank is in its job, as torch's device mesh or Megatron knows it: an event whenever that changes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stepscope.core.coordinates import PLACED, of_megatron, of_mesh
from stepscope.integrations.walls import Failures

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.core.after_import import AfterImport
    from stepscope.integrations.torch.patches import Patches

LOOKS = 32
"""Examined steps in which Megatron is looked for: it sets up its groups before the first."""
MODULE = "torch.distributed.device_mesh"


class MeshPlaces:
    """Remembers the largest named mesh that the program makes, and records this rank's coordinates in it."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._looks = 0
        self._known: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self.failures = Failures(run, "coordinates")

    def attach(self, patches: Patches, imports: AfterImport) -> None:
        """Notice every mesh from now on; nothing is imported for that."""
        imports.call(MODULE, lambda module: self._attach(module, patches))

    def _attach(self, module: Any, patches: Patches) -> None:
        mesh = getattr(module, "DeviceMesh", None)
        if mesh is not None:
            patches.wrap(mesh, "__init__", self._noticing)

    def _noticing(self, make: Callable[..., None]) -> Callable[..., None]:
        def made(mesh: Any, *args: Any, **options: Any) -> None:
            make(mesh, *args, **options)
            if not self.failures.over:
                with self.failures:
                    self._notice(of_mesh(mesh))

        return made

    def _notice(self, found: dict[str, int]) -> None:
        """Keep what is new; a mesh of one dimension may be a part of one that is known."""
        if len(found) >= len(self._known):
            self._known = {**self._known, **found}
        else:
            self._known = {**found, **self._known}

    def step_end(self, step: int | None) -> None:
        """Record the coordinates if they have changed since the last call."""
        if self.failures.over:
            return
        if self._looks < LOOKS:
            self._looks += 1
            with self.failures:
                self._known |= of_megatron(sys.modules)
        if self._known != self._told:
            self._told = dict(self._known)
            self._run.own_event(PLACED, step=step, coordinates=self._told, source="torch")
