"""The GPUs of the run: interpret CUDA_VISIBLE_DEVICES the way CUDA does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class Instance:
    """One MIG instance of a GPU."""

    index: int
    uuid: str
    name: str = ""
    ids: tuple[int, int] = (0, 0)
    """Ids of the GPU instance and the compute instance, as older drivers name them."""


@dataclass(frozen=True)
class Device:
    """One GPU, with the driver's index."""

    index: int
    uuid: str
    name: str = ""
    memory_total_bytes: float | None = None
    instances: tuple[Instance, ...] = ()

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Device:
        """Build a device from the helper's facts."""
        instances = tuple(
            Instance(each["index"], each["uuid"], each["name"], tuple(each["ids"])) for each in facts.get("mig", ())
        )
        return cls(facts["index"], facts["uuid"], facts["name"], facts["memory_total_bytes"], instances)


GpuPlace = tuple[int, "int | None"]
"""Index of a GPU, and of the MIG instance on it, or None for the whole GPU."""


def visible_devices(text: str | None, devices: Sequence[Device]) -> tuple[GpuPlace, ...]:
    """Return the GPUs and MIG instances that a value of CUDA_VISIBLE_DEVICES exposes, in its order.

    Without a value, every GPU. An entry that matches none, such as -1, ends the list; a repeated entry voids it.
    Numbers are taken as the driver's, in whose order `devices` are; see `order_matters`.
    """
    if text is None:
        return tuple((device.index, None) for device in devices)
    found: list[GpuPlace] = []
    for word in text.split(","):
        place = _place(word.strip(), devices)
        if place is None:
            break
        if place in found:
            return ()
        found.append(place)
    return tuple(found)


def order_matters(text: str | None, devices: Sequence[Device], order: str | None) -> bool:
    """Return whether numbers in the value may differ from the driver's: CUDA puts the fastest card first."""
    numbered = bool(text) and any(_NUMBER.match(word.strip()) for word in str(text).split(","))
    return numbered and order != "PCI_BUS_ID" and len({device.name for device in devices}) > 1


def _place(word: str, devices: Sequence[Device]) -> GpuPlace | None:
    number = _NUMBER.match(word)
    if number is not None:  # CUDA parses the digits and ignores the rest
        at = int(number.group())
        return (devices[at].index, None) if 0 <= at < len(devices) else None
    instances = [(device, instance) for device in devices for instance in device.instances]
    found: list[GpuPlace] = []
    if word.startswith("MIG-GPU-"):  # MIG-GPU-<uuid>/<GPU instance>/<compute instance>, the form of older drivers
        gpu, *ids = word.removeprefix("MIG-").split("/")
        named = [(device, one) for device, one in instances if list(map(str, one.ids)) == ids]
        found = [(device.index, one.index) for device, one in named if device.uuid.startswith(gpu)]
    elif word.startswith("MIG-"):
        found = [(device.index, one.index) for device, one in instances if one.uuid.startswith(word)]
    elif word.startswith("GPU-"):
        found = [(device.index, None) for device in devices if device.uuid.startswith(word)]
    return found[0] if len(found) == 1 else None  # an abbreviation must be unique
