"""The name `wandb` for the drop-in."""

from __future__ import annotations

from stepscope.integrations.wandb_drop_in.modules import serve_submodules
from stepscope.integrations.wandb_drop_in.names import *  # noqa: F403 - all of W&B's names
from stepscope.integrations.wandb_drop_in.names import __all__, __dir__, __getattr__, __version__, _attach  # noqa: F401 - as above

serve_submodules()
