"""`wandb.config`: the settings of a run, by attribute and by item."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import in_words
from stepscope.integrations.wandb_drop_in.unknown import NOTICES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class RunConfig:
    """Settings in the order they were set. What is set is stored with the run; `keep` gets each change."""

    def __init__(self, keep: Callable[[dict[str, Any]], None] | None = None, stored: Any = ()) -> None:
        """Start with what is stored already."""
        vars(self).update(_items=dict(stored), _keep=keep)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __getattr__(self, key: str) -> Any:
        if key in vars(self).get("_items", {}):
            return self._items[key]
        raise AttributeError(f"wandb.config has no {key!r}")

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __setattr__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return str(self._items)

    def keys(self) -> list[str]:
        """Return the names of the settings."""
        return [key for key in self._items if not key.startswith("_")]

    def values(self) -> list[Any]:
        """Return the values, in the order of `keys`."""
        return [self._items[key] for key in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        """Return names and values."""
        return [(key, self._items[key]) for key in self.keys()]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting, or the default."""
        return self._items.get(key, default)

    def as_dict(self) -> dict[str, Any]:
        """Return all settings."""
        return dict(self._items)

    def update(self, d: Any, allow_val_change: bool | None = None) -> None:  # noqa: FBT001 - W&B's signature
        """Set what a dict, an argparse namespace or a file of YAML or JSON contains.

        A changed value is kept whether it was allowed or not: W&B would end the training here.
        """
        found = settings_of(d)
        changed = [key for key, value in found.items() if key in self._items and not _same(self._items[key], value)]
        if changed and not allow_val_change:
            names = ", ".join(changed[:5])
            NOTICES.say("config", f"wandb.config: {names} changed without allow_val_change=True; the new value is kept")
        self._items.update(found)
        self.persist(found)

    def setdefaults(self, d: Any) -> None:
        """Set what is not set yet."""
        found = {key: value for key, value in settings_of(d).items() if key not in self._items}
        self._items.update(found)
        self.persist(found)

    def update_locked(self, d: Any, user: object = None, _allow_val_change: object = None) -> None:  # noqa: ARG002 - W&B's
        """Set values; nothing is locked here."""
        self.update(d, allow_val_change=True)

    merge_locked = update_locked

    def persist(self, found: dict[str, Any] | None = None) -> None:
        """Store the given or all settings with the run."""
        if self._keep is not None:
            self._keep(self._items if found is None else found)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the settings, without the run that they belong to."""
        return _restored, (dict(self._items),)


def _restored(items: dict[str, Any]) -> RunConfig:
    return RunConfig(stored=items)


def settings_of(source: Any) -> dict[str, Any]:
    """Return the settings in a dict, a mapping, a namespace, flags, or a file of YAML or JSON; never raises."""
    with NOTICES.shield("config-source", "read the config", "pass a dict") as shield:
        found = _pairs(source)
    return {} if shield.failed else {str(key).strip("-"): value for key, value in found.items()}


def _pairs(source: Any) -> dict[Any, Any]:
    if source is None:
        return {}
    if isinstance(source, dict):
        return source
    if isinstance(source, str):
        return _file(source)
    if hasattr(source, "flag_values_dict"):  # absl
        return dict(source.flag_values_dict())
    if hasattr(source, "keys") and hasattr(source, "__getitem__"):
        return {key: source[key] for key in source.keys()}  # noqa: SIM118 - a mapping of any kind
    return dict(vars(source))


def _file(path: str) -> dict[Any, Any]:
    """Read a file of settings; each may be W&B's pair of `desc` and `value`."""
    from stepscope.core.yaml_text import read_file  # loads PyYAML

    found = read_file(Path(path)).data
    return {
        key: value["value"] if isinstance(value, dict) and value.keys() <= {"desc", "value"} else value
        for key, value in found.items()
        if key != "wandb_version"
    }


def _same(before: Any, now: Any) -> bool:
    try:
        return bool(before == now)
    except Exception as error:  # noqa: BLE001 - a user's or numpy's comparison; reported, and the value counts as new
        NOTICES.say("config-compare", f"cannot compare two values of the config: {in_words(error)}; the new is kept")
        return False
