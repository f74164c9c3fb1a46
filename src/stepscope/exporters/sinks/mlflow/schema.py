"""The tables of an MLflow database in SQLite: whether we can write them, and how they are created."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import uuid
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from stepscope.core.spawn import SpawnError, interpreter
from stepscope.core.terminal_text import plain
from stepscope.exporters.sinks.sink import SinkDeniesError, SinkDownError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping
    from pathlib import Path

TESTED = "dc11669786a5"
"""The schema of MLflow 3.17, with which this is tested; others with the same columns are written too."""
_VALUES = {"key", "value", "run_uuid"}
COLUMNS = {
    "experiments": {"experiment_id", "name", "artifact_location", "lifecycle_stage"},
    "runs": {
        *("run_uuid", "name", "source_type", "source_name", "entry_point_name", "user_id", "status"),
        *("start_time", "end_time", "source_version", "lifecycle_stage", "artifact_uri", "experiment_id"),
    },
    "metrics": {*_VALUES, "timestamp", "step", "is_nan"},
    "latest_metrics": {*_VALUES, "timestamp", "step", "is_nan"},
    "params": _VALUES,
    "tags": _VALUES,
}
"""Columns that we write, by table."""
LONGEST = 25.0
"""Seconds that MLflow may take to create a database."""


class MlflowSchema(NamedTuple):
    """What differs between versions of the tables."""

    version: str
    has_workspaces: bool
    has_times: bool
    """Whether experiments have times of creation and of their last update."""


def schema_of(database: sqlite3.Connection) -> MlflowSchema:
    """Return what the tables are; SinkDeniesError if we cannot write them."""
    found = {table: {row[1] for row in database.execute(f"PRAGMA table_info({table})")} for table in COLUMNS}
    version = "unknown"
    if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
        version = str((database.execute("SELECT version_num FROM alembic_version").fetchone() or ["unknown"])[0])
    if not any(found.values()):
        raise SinkDeniesError("the file is no database of MLflow")
    lost = sorted(f"{table}.{name}" for table, names in COLUMNS.items() for name in names - found[table])
    if lost:
        why = f"the database has MLflow's schema {version[:40]}, which lacks {lost[0]}"
        raise SinkDeniesError(f"{why}; bring it to a newer one with `mlflow db upgrade`")
    experiments = found["experiments"]
    return MlflowSchema(version, "workspace" in experiments, {"creation_time", "last_update_time"} <= experiments)


def can_create() -> bool:
    """Return whether MLflow is installed beside us; it is not loaded."""
    found = importlib.util.find_spec("mlflow")
    return found is not None and found.origin is not None


def create(path: Path, environ: Mapping[str, str]) -> None:
    """Create an empty database with MLflow's own command, which takes seconds; never over one that is there.

    It is made beside its place, so that no reader ever sees half of it.
    """
    if not can_create():
        why = f"there is no database {path}, and MLflow is not installed here to create one"
        raise SinkDeniesError(f"{why}; run `mlflow server` with it once")
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _upgrade(new, environ)
        try:
            os.link(new, path)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            if not path.exists():
                os.replace(new, path)
    except OSError as error:
        raise SinkDeniesError(f"the database {path} cannot be created: {error.strerror}") from None
    finally:
        for ending in ("", "-journal", "-wal", "-shm"):
            with contextlib.suppress(OSError):  # most of them were never there
                os.unlink(f"{new}{ending}")


def _upgrade(path: Path, environ: Mapping[str, str]) -> None:
    try:
        command = [interpreter(), "-m", "mlflow", "db", "upgrade", f"sqlite:///{path}"]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # A training may make errors of warnings, but MLflow's own are not its business.
            env={**environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"},
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SinkDownError(f"MLflow did not create the database {path.parent} within {LONGEST:.0f} s") from None
    except SpawnError as error:
        raise SinkDeniesError(f"MLflow cannot be started to create the database: {error}") from None
    if done.returncode:
        said = plain(done.stderr[-2000:].decode(errors="replace").strip().rpartition("\n")[2])[:200]
        raise SinkDeniesError(f"MLflow cannot create the database: {said or f'exit code {done.returncode}'}")


def below(location: str, *parts: str) -> str:
    """Return a place of artifacts below another, which is a path or an address, as MLflow writes it."""
    address = urlsplit(location)
    end = "/".join(parts)
    if not address.scheme:
        return f"{location.rstrip('/')}/{end}"
    if not address.path.startswith("/"):
        return f"{location.rstrip('/')}/{end}"
    return urlunsplit(address._replace(path=f"{address.path.rstrip('/')}/{end}"))


def artifact_root(experiments: Mapping[int, str | None], path: Path) -> str:
    """Return the place below which an experiment without a place of its own has its artifacts.

    That is where those of the database have theirs; in an empty one `mlruns` beside it, as MLflow does for a program
    that runs in that folder.
    """
    for number, location in sorted(experiments.items()):
        if location and location.rstrip("/").endswith(f"/{number}"):
            return location.rstrip("/")[: -len(f"/{number}")] or "/"
    return (path.parent / "mlruns").as_posix()
