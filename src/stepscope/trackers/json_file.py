"""Export figures as a JSON file, without raising into the training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.core.strict_json import strict
from stepscope.exporters.files.output import write_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.recorder.complaints import Complaints


def write_json(target: Path, facts: dict[str, Any], instead: Callable[[float], Any], notices: Complaints) -> bool:
    """Write facts, with `instead(number)` for numbers that are not finite; report a failure and return False."""
    try:
        write_text(target, json.dumps(strict(facts, instead), indent=2, allow_nan=False) + "\n")
    except StepscopeError as error:
        notices.say("export", f"cannot write {target}: {error.cause}; choose another path")
        return False
    return True
