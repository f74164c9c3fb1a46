"""Build the hot path in C where that is possible; everywhere else the package is Python alone."""

from __future__ import annotations

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
FLAGS = ("-O2", "-Wall", "-fPIC", "-shared")
SECONDS = 120


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compile one file, and put the result beside it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Compile; where that does not work say so, and go on without."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root)
        target = (folder / SOURCE).with_suffix(sysconfig.get_config_var("EXT_SUFFIX") or ".so")
        cause = why_not() or compile_to(folder / SOURCE, target)
        if cause:
            self.app.display_warning(f"cannot build the hot path in C: {cause}; the recorder runs in Python")
            return
        build_data["artifacts"].append(str(target.relative_to(folder)))
        build_data["pure_python"], build_data["infer_tag"] = False, True


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
