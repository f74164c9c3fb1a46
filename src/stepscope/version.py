"""The version, in a leaf that anything may import; the package metadata is read from here."""

from __future__ import annotations

__version__ = "0.1.0"
