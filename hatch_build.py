"""Build the page, and the hot path in C where that is possible; everywhere else the recorder is Python alone."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/stepscope/recorder/_hot.c")
FLAGS = ("-O2", "-DNDEBUG", "-Wall", "-fPIC", "-fno-plt", "-fvisibility=hidden", "-shared")
SECONDS = 120


class PackageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compile one file and build the page, and put the results where they belong."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what the build needs: Node, where the machine has none that is new enough."""
        page = page_of(Path(self.root))
        if self.target_name != "wheel" or page is None or page.is_fresh(Path(self.root)):
            return []
        try:
            page.node()
        except page.PageError:
            return [page.NODE_WHEEL]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Build both; where one does not work say so, and go on without."""
        if self.target_name != "wheel":
            return
        self._page(Path(self.root), build_data)
        self._native(Path(self.root), build_data)

    def _page(self, folder: Path, build_data: dict[str, Any]) -> None:
        page = page_of(folder)
        if page is None:
            return
        try:
            page.freshen(folder)
        except page.PageError as error:
            self.app.display_warning(f"cannot build the page: {error}; everything else works, `make page` tries again")
            return
        build_data["artifacts"].append(f"{page.STATIC.as_posix()}/**")

    def _native(self, folder: Path, build_data: dict[str, Any]) -> None:
        target = (folder / SOURCE).with_suffix(sysconfig.get_config_var("EXT_SUFFIX") or ".so")
        cause = why_not() or compile_to(folder / SOURCE, target)
        if cause:
            self.app.display_warning(f"cannot build the hot path in C: {cause}; the recorder runs in Python")
            return
        build_data["artifacts"].append(str(target.relative_to(folder)))
        build_data["pure_python"], build_data["infer_tag"] = False, True


def page_of(folder: Path) -> Any:
    """Return what builds the page, `tools/page.py`; None where the page's source is not there."""
    source = folder / "tools" / "page.py"
    found = importlib.util.spec_from_file_location("stepscope_page", source)
    if found is None or found.loader is None or not (source.is_file() and (folder / "web" / "index.html").is_file()):
        return None
    page = importlib.util.module_from_spec(found)
    found.loader.exec_module(page)
    return page


def why_not() -> str:
    """Return why it is not built for this interpreter; empty if it is."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it is for CPython with a GIL"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "it is for Linux on x86-64"
    return ""


def compile_to(source: Path, target: Path) -> str:
    """Compile a source to an extension module; return the cause if that fails."""
    words = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    compiler = next((word for word in words if word and shutil.which(shlex.split(word)[0])), None)
    if compiler is None:
        return "there is no C compiler"
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    include = sysconfig.get_paths()["include"]
    command = [*shlex.split(compiler), *FLAGS, f"-I{include}", str(source), "-o", str(fresh)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["the compiler failed"])[0][:200]
        fresh.replace(target)  # a process that has loaded the old one keeps it
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        fresh.unlink(missing_ok=True)
    return ""
