"""Files of a run: artifacts that it logs or uses, and files that it saves."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import in_words
from stepscope.integrations.wandb_drop_in.artifacts import Artifact, ArtifactLedger
from stepscope.integrations.wandb_drop_in.unknown import NOTICES

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.session.run import Run as Recording

_LOGGED: dict[str, Artifact] = {}
"""The artifacts that this process has logged, by name."""


class RunFiles:
    """The part of a run that scripts hand files to. Nothing is copied."""

    def __init__(self, recording: Recording) -> None:
        """Record events in `recording`."""
        self.recording = recording
        self._ledger = ArtifactLedger(self._report)

    @property
    def step(self) -> int:
        """The step of what is recorded now."""
        return self.recording.step_index

    def save(self, glob_str: Any = None, base_path: Any = None, policy: str = "live", **_: Any) -> list[str]:  # noqa: ARG002
        """Record files by path, size and hash; they are not copied. Returns their paths."""
        found: list[str] = []
        with NOTICES.shield("save", "save files"):
            found = sorted(glob.glob(os.fspath(glob_str or ""), recursive=True))
            artifact = Artifact(os.fspath(glob_str or ""), "file")
            for path in found:
                artifact.add_file(path)
            if found:
                self._ledger.add(artifact, event="saved_files", step=self.step)
        return [os.path.abspath(path) for path in found]

    def log_artifact(
        self,
        artifact_or_path: Any,
        name: Any = None,
        type: Any = None,  # noqa: A002
        aliases: Any = None,
        **_: Any,
    ) -> Artifact:
        """Record an artifact, or a file or folder as one, by path, size and hash."""
        artifact = artifact_or_path
        if not isinstance(artifact, Artifact):
            artifact = Artifact(
                name or f"run-{self.recording.id}-{os.path.basename(str(artifact_or_path))}", type or "unspecified"
            )
            with NOTICES.shield("artifact-path", "log an artifact"):
                artifact.add_file(artifact_or_path)
        artifact.aliases += [aliases] if isinstance(aliases, str) else list(aliases or ())
        _LOGGED[artifact.name] = artifact
        if self.recording.recording:
            self._ledger.add(artifact, event="artifact", step=self.step)
        return artifact

    upsert_artifact = finish_artifact = log_artifact

    def use_artifact(self, artifact_or_name: Any, type: Any = None, *_: Any, **__: Any) -> Artifact:  # noqa: A002
        """Record that an artifact is used, and return it: as logged by this program, or by a run of this project."""
        artifact = artifact_or_name
        if not isinstance(artifact, Artifact):
            wanted = Artifact(str(artifact_or_name), type or "")
            artifact = _LOGGED.get(wanted.name) or _stored(wanted, self.recording.path.parent)
        self.recording.own_event(
            "used_artifact", step=self.step, name=artifact.name, type=artifact.type, version=artifact.version
        )
        return artifact

    def log_model(self, path: Any, name: Any = None, aliases: Any = None) -> Artifact:
        """Record a file or folder as an artifact of type model."""
        return self.log_artifact(path, name, "model", aliases)

    def use_model(self, name: Any) -> str:
        """Return the path of a model's file or folder."""
        return self.use_artifact(name, "model").file()

    def link_artifact(self, artifact: Any, *_: Any, **__: Any) -> Any:
        """Return the artifact: there is no registry."""
        return artifact

    def link_model(self, path: Any, *_: Any, **more: Any) -> Artifact:
        """Record a model."""
        return self.log_model(path, more.get("name"))

    def settle_files(self, seconds: float) -> None:
        """Wait at most about this long for hashes; files that have none by then are recorded without."""
        self._ledger.settle(seconds)

    def _report(self, found: dict[str, Any]) -> None:
        self.recording.own_event(str(found.pop("event")), **found)


def _stored(wanted: Artifact, project: Path) -> Artifact:
    """Return an artifact that a run of the project has logged, newest first; the wanted one without files if none."""
    from stepscope.store.catalog import run_folders  # only who asks for artifacts needs them
    from stepscope.store.events import read_events
    from stepscope.store.layout import RunFolder

    try:
        for folder in sorted(run_folders(project.parent), reverse=True):
            if folder.parent.name != project.name:
                continue
            for event in reversed(read_events(RunFolder(folder))[0]):
                if event.get("kind") == "artifact" and event.get("name") == wanted.name:
                    for file in event.get("files") or ():
                        wanted.add_file(str(file["path"]), str(file["name"]))
                    return wanted
    except Exception as error:  # noqa: BLE001 - events of any origin; the artifact then has no files, which it says
        NOTICES.say("stored", f"cannot look for artifact {wanted.name}: {in_words(error)}; it has no files")
    return wanted
