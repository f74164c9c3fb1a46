"""JSON texts of trackers, decoded fast; what the fast decoder refuses gets a second chance."""

from __future__ import annotations

from typing import Any

import msgspec

from stepscope.importers.source import json_value

REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a text that is not what it decodes."""
_decode = msgspec.json.Decoder().decode


def decoded(data: bytes | str) -> Any:
    """Return the value of a JSON text, or None if it is invalid; NaN and Infinity without quotes are numbers."""
    try:
        return _decode(data)
    except REFUSED:
        return json_value(data.decode("utf-8", "replace") if isinstance(data, bytes) else data)
