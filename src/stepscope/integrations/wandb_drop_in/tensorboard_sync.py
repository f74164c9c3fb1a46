"""`sync_tensorboard=True`: scalars that the script writes for TensorBoard are recorded too, at their own step."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from stepscope.core.after_import import AfterImport
from stepscope.integrations.wandb_drop_in.unknown import NOTICES

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.integrations.wandb_drop_in.run import WandbRun

WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
STEP = "global_step"
"""W&B's name for TensorBoard's step."""


class TensorboardSync:
    """Passes on what SummaryWriters get, to one run at a time. Their own behaviour is unchanged."""

    def __init__(self) -> None:
        """Follow no writer yet."""
        self.run: WandbRun | None = None
        self._is_patched = False
        self._step: int | None = None

    def start(self, run: WandbRun) -> None:
        """Record into `run` from now on; writers that are imported later too."""
        self.run, self._step = run, None
        if not self._is_patched:
            self._is_patched = True
            imports = AfterImport()
            for name in WRITERS:
                imports.call(name, self._patch)

    def _patch(self, module: ModuleType) -> None:
        writer = module.SummaryWriter
        add_scalar, add_histogram = writer.add_scalar, writer.add_histogram

        @functools.wraps(add_scalar)
        def with_scalar(own: Any, tag: Any, scalar_value: Any, global_step: Any = None, *args: Any, **more: Any) -> Any:
            done = add_scalar(own, tag, scalar_value, global_step, *args, **more)
            with NOTICES.shield("tensorboard", "record a scalar of TensorBoard"):
                self._add(tag, scalar_value, global_step)
            return done

        @functools.wraps(add_histogram)
        def with_histogram(own: Any, tag: Any, values: Any, global_step: Any = None, *args: Any, **more: Any) -> Any:
            done = add_histogram(own, tag, values, global_step, *args, **more)
            if self.run is not None:
                self.run.recording.histogram(str(tag), values, global_step)
            return done

        writer.add_scalar, writer.add_histogram = with_scalar, with_histogram

    def _add(self, tag: Any, value: Any, step: Any) -> None:
        run = self.run
        if run is None:
            return
        if step is not None and step != self._step:
            self._step = step
            run.recording.log({STEP: step}, step=step)
        run.recording.log({str(tag): value}, step=step)


SYNC = TensorboardSync()
