"""Let torch record its collectives, so that a hang can be explained: by environment variables, before it starts.

What is set, and why it is harmless:

- `TORCH_FR_BUFFER_SIZE=2000`: torch keeps the last 2000 collectives of the process in memory, under a megabyte. New
  versions do so by themselves. Versions before 2.8 only know `TORCH_NCCL_TRACE_BUFFER_SIZE`, of which later ones warn.
- `TORCH_FR_DUMP_TEMP_FILE`: if torch itself dumps its record, because a collective took too long, the file lands in the
  run, as `flight/<attempt>-comm_lib_trace_rank_<rank>`, and not in the user's cache.

Not set: `TORCH_NCCL_DUMP_ON_TIMEOUT`, because new versions dump by themselves, and in older ones a dump delays the end
of a job that has failed; and `TORCH_NCCL_DEBUG_INFO_PIPE_FILE`, because torch aborts if it cannot make that pipe.
Whatever the user has set stays.
"""

from __future__ import annotations

import contextlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.store.layout import DUMPS_FOLDER, RunFolder

if TYPE_CHECKING:
    from collections.abc import MutableMapping

SIZE, OLD_SIZE, ENTRIES = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"
FILE, OLD_FILE = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
KNOWS_NEW = (2, 8)
"""The first version of torch that knows the new names."""
_NUMBER = re.compile(r"(\d{1,6})\.(\d{1,6})")
_OURS = re.compile(rf"/{DUMPS_FOLDER}/\d+-[a-z_]+$")


def keep_collectives(environ: MutableMapping[str, str], run: Path, attempt: int, world_size: int) -> None:
    """Prepare the environment of a rank of a run with several ranks; one rank alone has no collectives."""
    if world_size > 1:
        record_collectives(environ)
        keep_dumps(environ, run, attempt)


def record_collectives(environ: MutableMapping[str, str]) -> None:
    """Have torch record its collectives, unless the user decided about that."""
    if SIZE not in environ and OLD_SIZE not in environ:
        environ[SIZE if _version() >= KNOWS_NEW else OLD_SIZE] = ENTRIES


def keep_dumps(environ: MutableMapping[str, str], run: Path, attempt: int) -> None:
    """Have torch's own dumps written into the folder of a run, unless the user decided where they go."""
    given = environ.get(FILE) or environ.get(OLD_FILE)
    if given and not _OURS.search(given):  # ours may be inherited from a program that recorded another run
        return
    path = RunFolder(run).torch_dump(attempt)
    with contextlib.suppress(OSError):  # then they go where torch puts them
        path.parent.mkdir(mode=0o700, exist_ok=True)
        environ[FILE if _version() >= KNOWS_NEW else OLD_FILE] = str(path)


def _version() -> tuple[int, ...]:
    """Return major and minor version of torch, without importing it; (0,) if it is not installed."""
    loaded = sys.modules.get("torch")
    text = str(getattr(loaded, "__version__", ""))
    if not text:
        # A namespace package, a file in an archive, a stand-in that a test has put in its place.
        with contextlib.suppress(OSError, ImportError, ValueError):
            spec = find_spec("torch")
            text = Path(spec.origin or "").with_name("version.py").read_text("utf-8") if spec is not None else ""
    found = _NUMBER.search(text)
    return (int(found[1]), int(found[2])) if found else (0,)
