"""`wandb.Settings`, and the environment variables that mean the same."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = {
    "project": "project",
    "entity": "entity",
    "run_id": "id",
    "run_name": "name",
    "run_group": "group",
    "run_tags": "tags",
    "run_notes": "notes",
    "run_job_type": "job_type",
    "root_dir": "dir",
    "mode": "mode",
    "resume": "resume",
    "reinit": "reinit",
}
"""Settings that mean the same as an argument of `init`."""
VARIABLES = {
    "WANDB_PROJECT": "project",
    "WANDB_ENTITY": "entity",
    "WANDB_RUN_ID": "id",
    "WANDB_NAME": "name",
    "WANDB_RUN_GROUP": "group",
    "WANDB_TAGS": "tags",
    "WANDB_NOTES": "notes",
    "WANDB_JOB_TYPE": "job_type",
    "WANDB_DIR": "dir",
    "WANDB_MODE": "mode",
    "WANDB_RESUME": "resume",
}
"""Environment variables that mean the same as an argument of `init`."""
YES = frozenset(("1", "true", "yes", "on", "y", "t"))


class Settings(SimpleNamespace):
    """Any settings; those that concern the run's identity count, the others have no effect."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def update(self, *others: Any, **values: Any) -> None:
        """Set more."""
        for other in others:
            vars(self).update(vars(other) if isinstance(other, Settings) else dict(other))
        vars(self).update(values)


def arguments_of(settings: Any, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return arguments of `init` by settings (a Settings or a dict) and, behind them, the environment."""
    found: dict[str, Any] = {name: environ[key] for key, name in VARIABLES.items() if environ.get(key)}
    if "tags" in found:
        found["tags"] = [tag.strip() for tag in found["tags"].split(",") if tag.strip()]
    if environ.get("WANDB_DISABLED", "").lower() in YES:
        found["mode"] = "disabled"
    given = vars(settings) if isinstance(settings, SimpleNamespace) else settings if isinstance(settings, dict) else {}
    found.update({NAMES[key]: value for key, value in given.items() if key in NAMES and value is not None})
    return found
