"""NVIDIA GPUs of the run, each and in total, read by a helper process without ever blocking.

`gpu/<index>` is the driver's index, as in nvidia-smi. A late answer is returned by the next call; `moment` is the time
when its values were read.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.samplers import nvidia_metrics as words
from stepscope.samplers.nvidia_dialog import START_SECONDS, Dialog, Link
from stepscope.samplers.nvidia_visible import Device, GpuPlace, order_matters, visible_devices
from stepscope.samplers.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.core.vocabulary import Metric

PATIENCE = 0.01
QUIET_SECONDS = 60.0
"""Throttling that recurs within this time counts as the same episode."""
_SIGNS = ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/dxg")


def driver_present(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> bool:
    """Return whether to start the helper: there are signs of a driver below `root`, or STEPSCOPE_NVML=1 is set."""
    environ = os.environ if environ is None else environ
    return environ.get("STEPSCOPE_NVML") == "1" or any((root / sign).exists() for sign in _SIGNS)


class NvidiaSampler(Sampler):
    """Read the GPUs of a run, or all GPUs of the machine."""

    name = "nvidia"
    metrics: tuple[Metric, ...] = words.METRICS

    def __init__(
        self,
        visible: str | None,
        all_devices: bool,  # noqa: FBT001 - the watcher passes its two settings in order
        pids: Callable[[], set[int]],
        deadline: float = 2.0,
        start: Callable[[], Link] = Link,
        *,
        patience: float = PATIENCE,
        root: Path = Path("/"),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; the first sample starts the helper, and only if there is a driver.

        Args:
            visible: CUDA_VISIBLE_DEVICES of the run; None if it is not set.
            all_devices: report every GPU; aggregates still cover only those of the run.
            pids: returns the processes of the run, to separate their memory from that of others.
            deadline: seconds without an answer after which the driver counts as hung.
            start: creates a helper.
            patience: seconds that one sample may wait for its own answer.
            root: where /dev and /proc are.
            environ: source of STEPSCOPE_NVML and CUDA_DEVICE_ORDER; the process's own by default.
        """
        environ = os.environ if environ is None else environ
        self._visible = [visible]
        self._order = environ.get("CUDA_DEVICE_ORDER")
        self._all, self._pids, self._proc = all_devices, pids, str(root / "proc")
        self._dialog = Dialog(deadline, patience, start)
        self._present = driver_present(root, environ)
        self._cards = _CardStates()
        self._missing: dict[str, str] = {}
        self.moment: int | None = None
        """Monotonic ns at which the values of the last sample were read."""
        self.devices: tuple[Device, ...] = ()
        self.driver = ""
        """Driver version, once known."""
        self.mine: tuple[GpuPlace, ...] = ()
        """Index of each GPU of the run, and of the MIG instance on it or None."""

    def also_visible(self, visible: str | None) -> None:
        """Add the GPUs that another rank of the run on this node sees."""
        if visible not in self._visible:
            self._visible.append(visible)
            self._choose()

    def sample(self, now: int) -> dict[str, float]:
        """Return the values of the newest answer, nothing if there is none yet; `now` in monotonic ns."""
        if not self._wanted():
            return {}
        values: dict[str, float] = {}
        for answer in self._dialog.exchange(now):  # after a late answer often two: the older may have the slow values
            values |= self._take(answer, now)
        for index in self._cards.lost:
            values = {name: value for name, value in values.items() if not name.startswith(f"gpu/{index}/")}
        return values

    def absent(self) -> dict[str, str]:
        """Return what is missing, with reason and remedy; `gpu` is everything."""
        if not self._present:
            return {"gpu": words.NO_GPU}
        if self._dialog.reason:
            return {"gpu": self._dialog.reason}
        if not self._wanted() or (self.devices and not self.mine and not self._all):
            return {"gpu": words.NOT_MINE}
        if self.driver and not self.devices and not self._cards.lost:
            return {"gpu": words.NO_CARDS}
        found = _collapsed(self._missing, [device.index for device in self.devices])
        if any(order_matters(visible, self.devices, self._order) for visible in self._visible):
            found["gpu/mine"] = words.ORDER_DOUBT
        return found

    def events(self) -> list[dict[str, object]]:
        """Return the events since the last call: lost GPUs, Xids, throttling, a hung driver."""
        found, self._dialog.events = self._dialog.events, []
        return found + super().events()

    def close(self) -> None:
        """End the helper."""
        self._dialog.close()

    def _wanted(self) -> bool:
        """Return whether a request makes sense: not if an empty CUDA_VISIBLE_DEVICES hides every GPU."""
        return self._present and (self._all or any(text is None or text.strip() for text in self._visible))

    def _choose(self) -> None:
        places = [place for text in self._visible for place in visible_devices(text, self.devices)]
        self.mine = tuple(dict.fromkeys(places))

    def _take(self, answer: dict[str, Any], now: int) -> dict[str, float]:
        self.moment = answer["moment"]
        if "devices" in answer:
            self.devices = tuple(Device.of(facts) for facts in answer["devices"])
            self.driver = answer["driver"]
            self._choose()
        own = self._pids()
        gpus = {gpu for gpu, _ in self.mine}
        values: dict[str, float] = {}
        for card in answer["gpus"]:
            index = card["index"]
            if self._all or index in gpus or self._unknown(card):
                self._events += tuple(self._cards.look(card, self._uuid(index), now))
                values |= self._values(card, own)
        for index, number in answer["xids"]:
            if self._all or index in gpus:
                self._events += (xid_event(index, number, self._uuid(index)),)
        return values | node_values(values, self.mine)

    def _unknown(self, card: dict[str, Any]) -> bool:
        """Return whether a GPU was lost before its name was known, and the run sees every GPU."""
        known = any(device.index == card["index"] for device in self.devices)
        return "lost" in card and not known and None in self._visible

    def _uuid(self, index: int) -> str:
        return next((device.uuid for device in self.devices if device.index == index), "")

    def _values(self, card: dict[str, Any], own: set[int]) -> dict[str, float]:
        index = card["index"]
        prefix = f"gpu/{index}/"
        if self._missing:
            self._missing = {name: why for name, why in self._missing.items() if not name.startswith(prefix)}
        if "lost" in card:
            self._missing[f"gpu/{index}"] = f"{card['lost']}; {words.LOST_REMEDY}"
            return {}
        self._missing.pop(f"gpu/{index}", None)
        for name, (kind, reason) in card.get("missing", {}).items():
            self._missing[prefix + name] = words.why_missing(kind, reason)
        values = {prefix + name: value for name, value in card["values"].items()}
        values |= self._shares(prefix, card["processes"], own)
        for instance in card["mig"]:
            if self._all or (index, None) in self.mine or (index, instance["index"]) in self.mine:
                inner = f"{prefix}mig/{instance['index']}/"
                values |= {inner + name: value for name, value in instance["values"].items()}
                values |= self._shares(inner, instance["processes"], own)
        return values

    def _shares(self, prefix: str, processes: list[list[Any]] | None, own: set[int]) -> dict[str, float]:
        if processes is None:
            return {}
        if any(memory is None for _, memory in processes):
            self._missing[f"{prefix}own_memory_bytes"] = words.HIDDEN
            return {}
        mine = sum(memory for pid, memory in processes if pid in own)
        other = sum(memory for pid, memory in processes if pid not in own)
        if other and not mine and own and not any(os.path.exists(f"{self._proc}/{pid}") for pid, _ in processes):
            self._missing[f"{prefix}own_memory_bytes"] = words.NAMESPACE
            return {}
        return {f"{prefix}own_memory_bytes": float(mine), f"{prefix}other_memory_bytes": float(other)}


class _CardStates:
    """The last known state of each GPU, to detect changes."""

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self._throttled: dict[tuple[int, str], int] = {}
        self._uncorrected: dict[int, float] = {}

    def look(self, card: dict[str, Any], uuid: str, now: int) -> list[dict[str, object]]:
        """Return the events of one GPU."""
        index: int = card["index"]
        about = {"gpu": index, "uuid": uuid}
        if "lost" in card:
            if index in self.lost:
                return []
            self.lost.add(index)
            return [{"kind": "gpu_lost", **about, "reason": card["lost"], "remedy": words.LOST_REMEDY}]
        found: list[dict[str, object]] = []
        if index in self.lost:
            self.lost.discard(index)
            found.append({"kind": "gpu_back", **about})
        started = self._started(index, card["values"], now)
        if started:
            text = ", ".join(words.HARMFUL[name] for name in started)
            reasons = {"reasons": started, "meaning": text, "remedy": words.THROTTLE_REMEDY}
            found.append({"kind": "gpu_throttled", **about, **reasons})
        total = card["values"].get("ecc_uncorrected_errors_total")
        if total is not None:
            grown = int(total - self._uncorrected.get(index, total))  # errors before the run are not its events
            self._uncorrected[index] = total
            if grown > 0:
                found.append({"kind": "ecc_uncorrected", **about, "errors": grown, "remedy": words.ECC_REMEDY})
        return found

    def _started(self, index: int, values: dict[str, float], now: int) -> list[str]:
        started = []
        for name in words.HARMFUL:
            if values.get(f"throttle_{name}"):
                before = self._throttled.get((index, name))
                if before is None or now - before > QUIET_SECONDS * 1e9:
                    started.append(name)
                self._throttled[index, name] = now
        return started


def xid_event(index: int, number: int, uuid: str) -> dict[str, object]:
    """Return the event for an Xid of a GPU, with its meaning and remedy."""
    meaning, remedy = words.XIDS.get(number, words.UNKNOWN_XID)
    return {"kind": "xid", "gpu": index, "uuid": uuid, "xid": number, "meaning": meaning, "remedy": remedy}


def node_values(values: dict[str, float], mine: Iterable[GpuPlace]) -> dict[str, float]:
    """Return the aggregates of the run's GPUs on this node; of a MIG instance only its own memory counts."""
    places = tuple(mine)
    gpus = list(dict.fromkeys(gpu for gpu, _ in places))

    memory_keys = [f"gpu/{gpu}/" + ("" if mig is None else f"mig/{mig}/") + "memory_used_bytes" for gpu, mig in places]
    memory = [values[key] for key in memory_keys if key in values]

    def column(name: str) -> list[float]:
        own = [values[key] for key in (f"gpu/{gpu}/{name}" for gpu in gpus) if key in values]
        return memory if name == "memory_used_bytes" else own

    return words.aggregated(column) | ({"gpu/count": float(len(memory))} if memory else {})


def _collapsed(missing: dict[str, str], indices: list[int]) -> dict[str, str]:
    """Merge entries that are missing on every GPU for the same reason."""
    found = dict(missing)
    for name, why in missing.items():
        _, index, *rest = name.split("/")
        names = [f"gpu/{each}/" + "/".join(rest) for each in indices]
        if rest and len(indices) > 1 and index != "*" and all(found.get(each) == why for each in names):
            for each in names:
                del found[each]
            found["gpu/*/" + "/".join(rest)] = why
    return found


class Gpus(NamedTuple):
    """The GPUs of the machine, as `doctor` shows them."""

    devices: tuple[Device, ...]
    driver: str
    """Driver version; empty if there is none."""
    reason: str
    """Why no GPUs are visible, and what to do; empty if some are."""
    missing: dict[str, str]
    """Values that they do not provide, with reason and remedy."""


def describe_gpus(
    wait: float = START_SECONDS,
    start: Callable[[], Link] = Link,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
) -> Gpus:
    """Return all GPUs of the machine, or why there are none; takes at most `wait` seconds."""
    sampler = NvidiaSampler(None, True, set, start=start, patience=wait, root=root, environ=environ)  # noqa: FBT003
    sampler.sample(time.monotonic_ns())
    absent = sampler.absent()
    reason = absent.pop("gpu", "")
    if not reason and not sampler.driver:
        remedy = "see whether nvidia-smi answers, and dmesg for Xids"
        reason = f"the NVIDIA driver did not answer for {wait:.0f} s; {remedy}"
    sampler.close()
    return Gpus(sampler.devices, sampler.driver, reason, absent)
