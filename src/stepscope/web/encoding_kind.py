"""The media type of curves, apart from what encodes them: the server answers its first question without numpy."""

from __future__ import annotations

KIND = "application/vnd.stepscope.curves"
