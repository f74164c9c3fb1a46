"""`wandb.summary`: one value per metric, the last one unless `define_metric` says otherwise."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.integrations.wandb_drop_in.metrics import MetricDefinitions


class Summary:
    """Values by name. What the script sets itself is stored with the run; `keep` gets it."""

    def __init__(self, keep: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Start empty."""
        vars(self).update(_items={}, _counts={}, _keep=keep)

    def follow(self, row: dict[str, Any], definitions: MetricDefinitions) -> None:
        """Take in a logged row."""
        for name, value in row.items():
            kept = definitions.kept(name)
            if kept == ("",):
                self._items[name] = value
            elif "none" not in kept:
                number = shown(value)
                if isinstance(number, (int, float)):
                    self._items[name] = self._combined(name, kept, number)

    def _combined(self, name: str, kept: tuple[str, ...], value: float) -> dict[str, float]:
        before = self._items.get(name)
        before = before if isinstance(before, dict) else {}
        count = self._counts[name] = self._counts.get(name, 0) + 1
        mean = before.get("mean", 0.0)
        found = {
            "min": min(before.get("min", value), value),
            "max": max(before.get("max", value), value),
            "mean": mean + (value - mean) / count,
            "last": value,
            "first": before.get("first", value),
        }
        return {word: found[word] for word in kept if word in found}

    def __getitem__(self, key: str) -> Any:
        if key in self._items:
            return shown(self._items[key])
        nested = {name[len(key) + 1 :]: shown(value) for name, value in self._items.items() if _is_below(name, key)}
        if nested:
            return nested
        raise KeyError(key)

    def __getattr__(self, key: str) -> Any:
        if "_items" in vars(self):
            with contextlib.suppress(KeyError):  # an attribute that is missing raises AttributeError
                return self[key]
        raise AttributeError(f"wandb.summary has no {key!r}")

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __setattr__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        del self._items[key]

    __delattr__ = __delitem__

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return str(dict(self.items()))

    def keys(self) -> list[str]:
        """Return the names."""
        return list(self._items)

    def values(self) -> list[Any]:
        """Return the values, in the order of `keys`."""
        return [shown(value) for value in list(self._items.values())]

    def items(self) -> list[tuple[str, Any]]:
        """Return names and values."""
        return list(zip(self.keys(), self.values(), strict=False))

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default."""
        return self[key] if key in self._items else default

    def update(self, d: Any) -> None:
        """Set values."""
        found = {str(key): value for key, value in dict(d).items()}
        self._items.update(found)
        if self._keep is not None:
            self._keep({key: shown(value) for key, value in found.items()})


def _is_below(name: object, key: str) -> bool:
    return isinstance(name, str) and name.startswith(f"{key}.")


def shown(value: Any) -> Any:
    """Return a value as a plain number if it is a scalar of numpy or of a tensor; reading one waits for its device."""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    return value
