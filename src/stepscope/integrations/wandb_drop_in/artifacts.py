"""Artifacts: named files and folders that a run makes or uses. Where they are, their sizes and hashes are recorded."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core.native_thread import start_without_signals
from stepscope.integrations.wandb_drop_in.unknown import NOTICES, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_FILES = 10_000
"""Files of a folder that are counted and hashed."""
LISTED = 20
"""Files that an event names; their sum and number cover all."""
CHUNK = 1 << 20


class ArtifactFile(NamedTuple):
    """One file of an artifact, or a reference to something elsewhere."""

    name: str
    path: str
    is_reference: bool = False


class Artifact:
    """A named set of files. Nothing is copied: the files stay where the script wrote them."""

    def __init__(
        self,
        name: str = "",
        type: str = "",  # noqa: A002 - W&B's spelling
        description: str | None = None,
        metadata: Any = None,
        **_: Any,
    ) -> None:
        """Start without files."""
        base, _colon, alias = str(name).rpartition("/")[2].partition(":")
        self.name, self.type, self.description = base, str(type), description
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.aliases: list[str] = [alias] if alias else []
        self.version = alias if re.fullmatch(r"v\d+", alias) else "v0"
        self.entries: list[ArtifactFile] = []
        self._folder: str | None = None

    def add_file(self, local_path: Any, name: str | None = None, *_: Any, **__: Any) -> ArtifactFile:
        """Add a file."""
        path = os.path.abspath(os.fspath(local_path))
        return self._add(ArtifactFile(name or os.path.basename(path), path))

    def add_dir(self, local_path: Any, name: str | None = None, *_: Any, **__: Any) -> None:
        """Add a folder and everything below it, as it is when the artifact is logged."""
        self._add(ArtifactFile(name or "", os.path.abspath(os.fspath(local_path))))

    def add_reference(self, uri: Any, name: str | None = None, *_: Any, **__: Any) -> list[ArtifactFile]:
        """Add something that lies elsewhere; it is not read."""
        text = str(getattr(uri, "path", uri))
        return [self._add(ArtifactFile(name or text.rpartition("/")[2], text, is_reference=True))]

    def add(self, obj: Any, name: str, *_: Any, **__: Any) -> ArtifactFile:
        """Add a table or a picture; it is named, and not written."""
        return self._add(ArtifactFile(name, f"<{getattr(obj, 'kind', type(obj).__name__)}>", is_reference=True))

    @contextlib.contextmanager
    def new_file(self, name: str, mode: str = "x", encoding: str | None = None) -> Iterator[Any]:
        """Write a new file of the artifact."""
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="stepscope-artifact-")
        path = Path(self._folder, *[part for part in Path(name).parts if part not in {"..", "/"}])
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode.replace("x", "w"), encoding=encoding) as file:
            yield file
        self._add(ArtifactFile(name, str(path)))

    def _add(self, entry: ArtifactFile) -> ArtifactFile:
        self.entries.append(entry)
        return entry

    def files(self) -> Iterator[ArtifactFile]:
        """Return every file, those of folders included, at most MOST_FILES; a missing one too."""
        for entry in self.entries:
            if entry.is_reference or not os.path.isdir(entry.path):
                yield entry
                continue
            below = (os.path.join(at, file) for at, _, names in os.walk(entry.path) for file in sorted(names))
            for count, path in enumerate(below):
                if count >= MOST_FILES:
                    return
                yield ArtifactFile(os.path.join(entry.name, os.path.relpath(path, entry.path)), path)

    def download(self, root: Any = None, *_: Any, **__: Any) -> str:
        """Return the folder in which the files are; they are local already, and `root` is not used for them."""
        for entry in self.entries:
            if not entry.is_reference:
                return entry.path if os.path.isdir(entry.path) else os.path.dirname(entry.path)
        NOTICES.say("download", f"artifact {self.name}: no run here has logged its files; its folder is empty")
        folder = os.path.abspath(os.fspath(root or os.path.join("artifacts", f"{self.name}-{self.version}")))
        with NOTICES.shield("download-folder", "make the folder of an artifact"):
            os.makedirs(folder, exist_ok=True)
        return folder

    checkout = download

    def file(self, root: Any = None) -> str:
        """Return the path of the only file."""
        return self.entries[0].path if self.entries else self.download(root)

    def get_path(self, name: str) -> Any:
        """Return a file by its name; its `download()` returns its path."""
        return _Located(next((entry.path for entry in self.entries if entry.name == name), name))

    get_entry = get_path

    def wait(self, timeout: float | None = None) -> Artifact:  # noqa: ARG002 - W&B's signature
        """Return at once: there is no upload."""
        return self

    def is_draft(self) -> bool:
        """Return False: a logged artifact is final."""
        return False

    @property
    def id(self) -> str:
        """Name and version."""
        return f"{self.name}:{self.version}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(_size(entry) or 0 for entry in self.files())

    def __getattr__(self, name: str) -> Any:
        if name in {"entries", "name", "_folder"}:
            raise AttributeError(name)
        return unknown(f"Artifact.{name}")

    def __repr__(self) -> str:
        return f"<Artifact {self.name}>"


class _Located(str):
    """A path that can be downloaded by returning it."""

    __slots__ = ()

    def download(self, root: Any = None, *_: Any, **__: Any) -> str:  # noqa: ARG002 - W&B's signature
        return str(self)

    @property
    def path(self) -> str:
        return str(self)


def _size(entry: ArtifactFile) -> int | None:
    try:
        return None if entry.is_reference else os.stat(entry.path).st_size
    except OSError:
        return None


def _sum(entry: ArtifactFile, is_wanted: Callable[[], bool]) -> str | None:
    """Return the SHA-256 of a file; None if it cannot be read, or is no longer wanted."""
    if entry.is_reference:
        return None
    found = hashlib.sha256()
    try:
        with open(entry.path, "rb") as file:
            while chunk := file.read(CHUNK):
                found.update(chunk)
                if not is_wanted():
                    return None
    except OSError:
        return None
    return found.hexdigest()


def describe(artifact: Artifact, is_wanted: Callable[[], bool]) -> dict[str, Any]:
    """Return what an event says of an artifact: files, sizes and hashes, as far as they were wanted."""
    files = [(entry, _size(entry), _sum(entry, is_wanted)) for entry in artifact.files()]
    listed = [{"name": entry.name, "path": entry.path, "size_bytes": size, "sha256": sha} for entry, size, sha in files]
    whole = hashlib.sha256("".join(f"{entry.name}\0{sha}\n" for entry, _, sha in files).encode("utf-8", "replace"))
    is_complete = all(sha is not None or entry.is_reference for entry, _, sha in files)
    return {
        "name": artifact.name,
        "type": artifact.type,
        "version": artifact.version,
        "aliases": list(artifact.aliases),
        "metadata": artifact.metadata,
        "count": len(files),
        "size_bytes": sum(size or 0 for _, size, _ in files),
        "sha256": whole.hexdigest() if is_complete and files else None,
        "files": listed[:LISTED],
    }


class ArtifactLedger:
    """Describes artifacts and reports them, in a thread: reading large files must not hold up the training."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        """Call `report` with each description."""
        self._report = report
        self._waiting: deque[tuple[Artifact, dict[str, Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._deadline = float("inf")
        self._lock = threading.Lock()

    def add(self, artifact: Artifact, **more: Any) -> None:
        """Take an artifact; `more` is reported with it."""
        with self._lock:
            self._waiting.append((artifact, more))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="stepscope-artifacts", daemon=True)
                start_without_signals(self._thread)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                artifact, more = self._waiting.popleft()
            with NOTICES.shield("artifact", "describe an artifact"):
                self._report({**describe(artifact, self._is_wanted), **more})

    def _is_wanted(self) -> bool:
        return time.monotonic() < self._deadline

    def settle(self, seconds: float) -> None:
        """Wait at most about this long; what is not hashed by then is reported without a hash."""
        thread = self._thread
        if thread is not None:
            self._deadline = time.monotonic() + seconds
            thread.join(seconds + 0.1)
