"""Our environment variables: `STEPSCOPE_<SECTION>__<KEY>` sets any setting, a few have names of their own."""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers treat typing's, without the 5 ms of importing it
if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX, BETWEEN = "STEPSCOPE_", "__"
PLAIN = frozenset(PREFIX + name for name in ("DIR", "CONFIG", "RUN_ID", "RUNTIME_DIR", "NVML", "PURE", "HTA_PYTHON"))
"""Variables that are not settings."""
ALERT = f"{PREFIX}ALERT_"
"""Prefix of the variables that the command of an alert gets."""


def ours(environ: Mapping[str, str]) -> list[str]:
    """Return the names of variables that set a setting, or seem meant to."""
    return [name for name in environ if name.startswith(PREFIX) and name not in PLAIN and not name.startswith(ALERT)]


def path_of(name: str) -> str:
    """Return the path of the setting that a variable names: "store.dir" for `STEPSCOPE_STORE__DIR`."""
    return name.removeprefix(PREFIX).lower().replace(BETWEEN, ".")


def variable_of(path: str) -> str:
    """Return the variable that sets a setting: `STEPSCOPE_STORE__DIR` for "store.dir"."""
    return PREFIX + path.upper().replace(".", BETWEEN)
