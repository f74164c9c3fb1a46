"""The settings of a training monitor, and the start of its own run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stepscope.core.config import load, load_or_default
from stepscope.core.errors import UsageError
from stepscope.core.identity import Distributed, place_of

if TYPE_CHECKING:
    from stepscope.recorder.complaints import Complaints
    from stepscope.trackers.logged_run import MonitoredRun

ConfigSource: TypeAlias = Mapping[str, object] | str | os.PathLike[str]
"""Settings in any accepted spelling, or the path of a YAML file with them."""


@dataclass(frozen=True)
class MonitorSettings:
    """The settings that were given, checked, by the path of their key."""

    given: Mapping[str, object] = field(default_factory=dict)
    """Only the settings that were given: other sources of `init` decide the rest."""
    remarks: tuple[str, ...] = ()
    """Remarks about them for people; a run that starts with them prints these itself."""

    @property
    def tensorboard_dir(self) -> str | None:
        """Folder for TensorBoard files, if one was given."""
        return str(self.given.get("exporters.tensorboard.dir") or "") or None

    def leaves_out(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Return whether this rank is not tracked: with `track_rank_0_only` all but rank 0."""
        first_only = self.given.get("recorder.track_rank_0_only") or self.given.get("recorder.distributed") is False
        return bool(first_only) and place_of(environ, Distributed.current()).rank != 0

    def start_run(self) -> MonitoredRun:
        """Begin a run with these settings; it becomes the current one of the process."""
        from stepscope.session.opening import init

        return init(**dict[str, Any](self.given))


def read_settings(config: ConfigSource | None, notices: Complaints) -> MonitorSettings:
    """Check a configuration and return its settings; errors are reported once, and the rest is used."""
    if config is None:
        return MonitorSettings()
    settings = config if isinstance(config, Mapping) else {}
    files = [] if isinstance(config, Mapping) else [Path(config)]
    reported = 0
    try:
        loaded = load(files, settings)
    except UsageError as error:
        notices.say("configuration", str(error))
        loaded, reported = load_or_default(files, settings), 1
    given = {path: loaded.get(path) for path, source in loaded.sources.items() if not source.startswith("implied by ")}
    return MonitorSettings(given, loaded.notices[: len(loaded.notices) - reported])
