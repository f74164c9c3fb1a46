"""Names and texts as MLflow takes them, whatever ours are."""

from __future__ import annotations

import functools
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME_LIMIT = 250
"""Characters of the name of a metric, parameter, tag or run."""
PARAM_LIMIT = 6000
"""Characters of the value of a parameter."""
TAG_LIMIT = 8000
"""Characters of the value of a tag."""
CUT = " … (cut by stepscope)"
"""Ends a value that was too long."""
_DIGITS = 10
_BAD = re.compile(r"[^/\w.\- :]")
_MARKED = re.compile(rf"-[0-9a-f]{{{_DIGITS}}}\Z")


@functools.lru_cache(maxsize=1 << 16)
def valid_name(name: str) -> str:
    """Return a name that MLflow takes; a name that had to be changed ends in a hash, so that no two become one.

    MLflow takes letters, digits and `/ _ . - :` and spaces, and what is in normal form if it is read as a path.
    """
    if len(name) <= NAME_LIMIT and not _BAD.search(name) and _is_normal(name) and not _MARKED.search(name):
        return name
    parts = (part if part not in {"", ".", ".."} else "_" for part in _BAD.sub("_", name).split("/"))
    kept = "/".join(parts)[: NAME_LIMIT - _DIGITS - 2]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{'_' if kept.startswith('..') else ''}{kept}-{digest}"


def _is_normal(name: str) -> bool:
    return posixpath.normpath(name) == name and name != "." and not name.startswith(("..", "/"))


def cut(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, without those that no database takes."""
    clean = text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    return clean if len(clean) <= limit else clean[: limit - len(CUT)] + CUT


def params_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a nested configuration as parameters: `{"a": {"b": 1}}` is `a.b`; texts are those that MLflow writes."""
    return {valid_name(path): cut(_as_text(value), PARAM_LIMIT) for path, value in _flat(config)}


def _flat(tree: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _as_text(value: object) -> str:
    if value is None or isinstance(value, (str, bool, int, float)):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
