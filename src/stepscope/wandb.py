"""A drop-in for scripts with W&B calls: `import stepscope.wandb as wandb`. Everything is recorded on this machine.

No account, no server, no upload. A name of W&B that is missing here says so once and does nothing.
"""

from __future__ import annotations

from stepscope.integrations.wandb_drop_in.names import *  # noqa: F403 - all of W&B's names
from stepscope.integrations.wandb_drop_in.names import __all__, __dir__, __getattr__, __version__, _attach  # noqa: F401 - as above
