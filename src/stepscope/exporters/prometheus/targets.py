"""Tell Prometheus where to scrape, with a `file_sd` file that is written atomically and removed with the endpoint."""

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
        """Write the file, in place of one that a dead process may have left; make its folder if it is missing.

        Args:
            path: ends in `.json`.
            target: host and port.
            facts: for relabelling, as `__meta_stepscope_<name>`; Prometheus drops them after that.
            mode: permissions; Prometheus often runs as its own user and then needs 0o644.

        Raises:
            OSError: it cannot be written.
        """
        self.path = path
        labels = {f"__meta_stepscope_{name}": value for name, value in (facts or {}).items()}
        self._text = json.dumps([{"targets": [target], "labels": labels}]) + "\n"
        path.parent.mkdir(mode=0o755 if mode & 0o044 else 0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(self._text)
                os.fchmod(file.fileno(), mode)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the file, unless another endpoint has written its own there. May be called again."""
        with contextlib.suppress(OSError):  # already gone
            if self.path.read_text(encoding="utf-8") == self._text:
                self.path.unlink()
