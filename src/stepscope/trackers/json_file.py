"""A JSON file that is written whole or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.core.strict_json import strict
from stepscope.exporters.files.output import new_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.recorder.complaints import Complaints


def write_json(target: Path, facts: dict[str, Any], instead: Callable[[float], Any], notices: Complaints) -> bool:
    """Write facts to a file, with `instead(number)` for every number that is not finite; make its folder.

    Returns:
        Whether it was written; if not, the reason is reported and a file that was there is unchanged.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_file(target, force=True) as path:
            path.write_text(json.dumps(strict(facts, instead), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except (OSError, StepscopeError) as error:
        cause = error.cause if isinstance(error, StepscopeError) else error
        notices.say("export", f"cannot write {target}: {cause}; choose another path")
        return False
    return True
