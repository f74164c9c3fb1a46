"""Identity and configuration of a run, from its run.json. Uses only the standard library, so that listing is fast."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.store.labels import read_labels
from stepscope.store.layout import FORMAT_VERSION, read_object

if TYPE_CHECKING:
    from stepscope.store.layout import RunFolder

MOST_LATER = 1 << 20
"""Maximum bytes read of the file of later facts."""


def read_meta(folder: RunFolder) -> dict[str, Any]:
    """Return the contents of run.json with what was learned later and, under `labels`, what people said about it.

    Raises StepscopeError if run.json is missing, damaged, or of a newer format.
    """
    what = f"open run {folder.path}"
    try:
        meta = json.loads(folder.run_file.read_bytes())
    except FileNotFoundError:
        raise StepscopeError(what, "it has no run.json", "give the folder of a run, or see `stepscope runs`") from None
    except (OSError, ValueError, RecursionError) as error:
        raise StepscopeError(what, f"run.json cannot be read ({error})", "restore that file from a copy") from error
    if not isinstance(meta, dict) or not isinstance(meta.get("id"), str) or not _well_typed(meta):
        raise StepscopeError(what, "run.json does not describe a run", "restore that file from a copy")
    if not isinstance(meta.get("format"), int) or meta["format"] > FORMAT_VERSION:
        raise StepscopeError(what, f"it has format {meta.get('format')}, newer than ours", "upgrade stepscope")
    labels = read_labels(folder)
    return {**_with_later(folder, meta), "labels": asdict(labels), **({"name": labels.name} if labels.name else {})}


def _with_later(folder: RunFolder, meta: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of run.json with later facts; a malformed file of later facts is ignored."""
    later = read_object(folder.later_file, MOST_LATER)  # most runs have none
    before, config, name = meta.get("config"), later.get("config"), later.get("name")
    if isinstance(config, dict) and (before is None or isinstance(before, dict)):
        meta["config"] = {**(before or {}), **config}
    if isinstance(name, str) and meta.get("name") in {None, "", meta["id"]}:
        meta["name"] = name
    return meta


def check_format(folder: RunFolder) -> None:
    """Raise StepscopeError if the run is of a newer format. A damaged run.json does not prevent writing."""
    version = read_object(folder.run_file).get("format")
    if isinstance(version, int) and version > FORMAT_VERSION:
        cause = f"it has format {version}, newer than ours"
        raise StepscopeError(f"continue run {folder.path}", cause, "upgrade stepscope, or choose another run_id=")


def _well_typed(meta: dict[str, Any]) -> bool:
    texts = all(isinstance(meta.get(key, ""), str) for key in ("name", "project"))
    created = meta.get("created", 0)
    return texts and isinstance(created, int) and 0 <= created < 2**63
