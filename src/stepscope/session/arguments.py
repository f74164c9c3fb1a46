"""Unknown keywords of `init`: reported at once, with the correct spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.config import REFERENCE, close_matches, unknown_settings
from stepscope.core.environment import BETWEEN
from stepscope.core.errors import UsageError
from stepscope.core.settings import PATHS

if TYPE_CHECKING:
    from collections.abc import Mapping

ARGUMENTS = (
    *("project", "name", "config", "dir", "config_file", "run_id", "resume", "dashboard"),
    *("tags", "notes", "group"),
)
ELSEWHERE = {
    **dict.fromkeys(("job_type", "hparams"), "put it into config={...}"),
    **dict.fromkeys(("run_name", "display_name", "experiment_name"), "write name=..."),
    **dict.fromkeys(("log_dir", "logdir", "save_dir", "root"), "write dir=..."),
    **dict.fromkeys(("entity", "project_name", "experiment"), "write project=..."),
    **dict.fromkeys(("id", "run"), "write run_id=..."),
}
"""What other tools call it, and what to write here."""


def known_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the valid keyword settings, and a sentence for each of the others."""
    strangers = set(unknown_settings(settings))
    wrong = [key for key in settings if key.replace(BETWEEN, ".") in strangers]
    refused = [
        UsageError(f"use init({key[:80]}=...)", "there is no such argument or setting", _remedy(key)) for key in wrong
    ]
    return {key: value for key, value in settings.items() if key not in wrong}, list(map(str, refused))


def _remedy(name: str) -> str:
    settings = [path.replace(".", BETWEEN) for path in PATHS]
    near = close_matches(name, [*ARGUMENTS, *ELSEWHERE, *settings])
    if near in ELSEWHERE:
        return ELSEWHERE[near]
    return f"did you mean {near}=?" if near else f"it takes {', '.join(ARGUMENTS)} and settings; {REFERENCE}"
