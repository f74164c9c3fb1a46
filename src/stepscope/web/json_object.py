"""The base of all responses."""

from __future__ import annotations

from msgspec import Struct


class Response(Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON object."""
