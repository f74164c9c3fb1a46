"""The fake NVIDIA driver library for tests and bench: compiled once per run, steered by a text file while it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = ("state.c", "devices.c", "readings.c")
LIBRARY = "libnvidia-ml.so.1"


def build(folder):
    """Return the folder that holds the compiled library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None, "needs a C compiler"
    target = Path(folder) / LIBRARY
    if not target.exists():
        fresh = target.with_name(f"{LIBRARY}.{os.getpid()}")
        sources = [str(FOLDER / name) for name in SOURCES]
        command = [compiler, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{LIBRARY}"]
        done = subprocess.run([*command, "-o", str(fresh), *sources], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        fresh.rename(target)
    return target.parent


class FakeDriver:
    """The fake driver as a test holds it: `set(**{"0.util": 3})` changes what every process that loaded it reads."""

    def __init__(self, library, state):
        """Take the folder of the library and the path of the text file."""
        self.library, self.state = Path(library), Path(state)
        self.lines = {}
        self._write()

    def set(self, lines=None, /, **more):
        """Change or add lines; a value of None takes the line away."""
        for key, value in {**(lines or {}), **more}.items():
            self.lines.pop(key, None)
            if value is not None:
                self.lines[key] = value
        self._write()

    def environment(self):
        """Return the variables with which a process finds the library and the text file, and nothing else."""
        return {"LD_LIBRARY_PATH": str(self.library), "FAKE_NVML_STATE": str(self.state), "STEPSCOPE_NVML": "1"}

    def _write(self):
        fresh = self.state.with_suffix(".new")  # another file each time: a reader never sees half of one
        fresh.write_text("".join(f"{key}={value}\n" for key, value in self.lines.items()))
        fresh.replace(self.state)
