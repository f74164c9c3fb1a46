"""The browser that pages are measured and tested with; `python -m bench.chromium` installs one where there is none.

The machine's own Chromium is taken if there is one; else, for root on Debian and Ubuntu, its package is installed, and
anywhere else Playwright downloads one into the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none", "--hide-scrollbars")
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
SECONDS = 600
"""How long an installation may take."""


def executable() -> str | None:
    """Return the path of a Chromium that Playwright can drive, or None where there is none."""
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return found
    downloads = (Path.home() / ".cache" / "ms-playwright").glob("chromium*/chrome-*/*")
    programs = [path for path in downloads if path.name in {"chrome", "chrome-headless-shell", "headless_shell"}]
    return str(max(programs)) if programs else None


def launched(playwright: Any, *flags: str) -> Any:
    """Start the browser without a window. Raises RuntimeError where there is none."""
    path = executable()
    if path is None:
        raise RuntimeError("no Chromium is installed")
    return playwright.chromium.launch(executable_path=path, args=[*FLAGS, *flags], timeout=180_000)


def ways() -> list[list[str]]:
    """Return the commands that would install one here, the best first."""
    found = []
    if os.geteuid() == 0 and shutil.which("apt-get"):
        found.append(["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "chromium"])
    found.append([sys.executable, "-m", "playwright", "install", "chromium-headless-shell"])
    return found


def install(command: list[str]) -> bool:
    """Run one of them; say whether there is a browser now."""
    print(f"installing a browser for the tests: {' '.join(command)}", flush=True)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"cannot install a browser: {error}", file=sys.stderr)
        return False
    if done.returncode:
        print(f"cannot install a browser: {done.stderr.strip()[-400:]}", file=sys.stderr)
    return executable() is not None


def main() -> int:
    """Install a browser unless there is one; never an error: the tests that need it skip and say what is missing."""
    if executable() is None and not any(install(command) for command in ways()):
        print("no browser: the browser tests will be skipped", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
