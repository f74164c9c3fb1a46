"""Tell Prometheus where to scrape: a `file_sd` file that appears whole, and goes with what it names."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class TargetsFile:
    """One file with one target; Prometheus looks into its folder by `file_sd_configs`."""

    def __init__(self, path: Path, target: str, facts: Mapping[str, str] | None = None, *, mode: int = 0o600) -> None:
        """Write the file, in place of one that a dead process may have left.

        Args:
            path: ends in `.json`; its folder is made if need be.
            target: host and port.
            facts: what relabelling may use; Prometheus drops it after that (`__meta_stepscope_<name>`).
            mode: permissions; Prometheus often runs as a user of its own and may need 0o644.

        Raises:
            OSError: it cannot be written.
        """
        self.path = path
        labels = {f"__meta_stepscope_{name}": value for name, value in (facts or {}).items()}
        self._text = json.dumps([{"targets": [target], "labels": labels}]) + "\n"
        path.parent.mkdir(mode=0o755 if mode & 0o044 else 0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o600)
            try:
                os.write(descriptor, self._text.encode())
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        """Take the file away, unless another endpoint has put its own there. May be called again."""
        with contextlib.suppress(OSError):  # never there, or gone: nothing to do
            if self.path.read_text(encoding="utf-8") == self._text:
                self.path.unlink()
