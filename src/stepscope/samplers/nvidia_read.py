"""Read every NVIDIA GPU through the binding into plain data, in the process of `nvidia_helper`.

A call that a card or driver does not support is tried once, recorded with its reason, and then skipped. A lost GPU is
reported as lost, and the others are still read.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Call = Callable[[Any, Any], dict[str, float]]
    """Takes the binding and a handle; returns values by name, in base units."""

UNSUPPORTED = "unsupported"
DENIED = "denied"
FAILED = "failed"
"""Why a value is missing: not supported by the card or driver, not permitted, or failed this time."""

_LOST = {15: "GPU is lost", 16: "GPU requires a reset", 28: "GPU was not found"}
_NO_PERMISSION = 4
_NEVER = {2, 3, 6, 13, 22, 25, 26}
"""Permanent error codes: invalid argument, not supported, not found, no such function, no ECC, version, deprecated."""

_THROTTLES = {
    0x04: "power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}
_NVLINK = ((38, "crc"), (45, "crc"), (52, "replay"), (59, "recovery"))
"""Fields with the sum over all links; two of them are CRC errors."""
_MEMORY_TEMPERATURE = 82
_XID = 8
_UNKNOWN_MEMORY = (1 << 64) - 1
_MOST_XIDS = 64


def throttle_flags(mask: int) -> dict[str, float]:
    """Return 1 or 0 for each throttle reason in the driver's bit mask."""
    return {f"throttle_{name}": float(bool(mask & bit)) for bit, name in _THROTTLES.items()}


def _utilization(nvml: Any, handle: Any) -> dict[str, float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization_ratio": rates.gpu / 100, "memory_busy_ratio": rates.memory / 100}


def _memory(nvml: Any, handle: Any) -> dict[str, float]:
    return _memory_old(nvml, handle, nvml.nvmlMemory_v2)


def _memory_old(nvml: Any, handle: Any, *version: Any) -> dict[str, float]:
    found = nvml.nvmlDeviceGetMemoryInfo(handle, *version)  # without one, memory that the driver reserves is in use
    return {"memory_used_bytes": float(found.used), "memory_total_bytes": float(found.total)}


def _single(name: str, function: str, per: float = 1, *arguments: int) -> Call:
    """Return the call of a function for one value; `per` of the driver's units make one of ours."""
    return lambda nvml, handle: {name: getattr(nvml, function)(handle, *arguments) / per}


def _clock(name: str, clock: str) -> Call:
    return lambda nvml, handle: {name: nvml.nvmlDeviceGetClockInfo(handle, getattr(nvml, clock)) * 1e6}


def _throttle(kind: str) -> Call:
    return lambda nvml, handle: throttle_flags(getattr(nvml, f"nvmlDeviceGetCurrentClocks{kind}Reasons")(handle))


def _field(nvml: Any, value: Any) -> float:
    """Return a field's number, or raise the error in its place."""
    if value.nvmlReturn:
        raise nvml.NVMLError(value.nvmlReturn)
    name = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[value.valueType]
    return float(getattr(value.value, name))


def _memory_temperature(nvml: Any, handle: Any) -> dict[str, float]:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [_MEMORY_TEMPERATURE])
    return {"memory_temperature_celsius": _field(nvml, value)}


def _ecc(nvml: Any, handle: Any) -> dict[str, float]:
    return {
        f"ecc_{name}_errors_total": float(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))
        for kind, name in ((0, "corrected"), (1, "uncorrected"))
    }


def _rows(nvml: Any, handle: Any) -> dict[str, float]:
    names = ("corrected_total", "uncorrected_total", "pending", "failed")
    found = nvml.nvmlDeviceGetRemappedRows(handle)
    return {f"remapped_rows_{name}": float(value) for name, value in zip(names, found, strict=True)}


def _nvlink(nvml: Any, handle: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    values = nvml.nvmlDeviceGetFieldValues(handle, [number for number, _ in _NVLINK])
    for (_, kind), value in zip(_NVLINK, values, strict=True):
        name = f"nvlink_{kind}_errors_total"
        found[name] = found.get(name, 0.0) + _field(nvml, value)
    return found


def _pcie(nvml: Any, handle: Any) -> dict[str, float]:
    sent, received = (nvml.nvmlDeviceGetPcieThroughput(handle, way) for way in (0, 1))
    return {"pcie_sent_bytes_per_second": sent * 1024.0, "pcie_received_bytes_per_second": received * 1024.0}


FAST: dict[str, tuple[Call, ...]] = {
    "utilization_ratio": (_utilization,),
    "memory_used_bytes": (_memory, _memory_old),
    "temperature_celsius": (
        _single("temperature_celsius", "nvmlDeviceGetTemperatureV", 1, 0),
        _single("temperature_celsius", "nvmlDeviceGetTemperature", 1, 0),
    ),
    "memory_temperature_celsius": (_memory_temperature,),
    "power_watts": (_single("power_watts", "nvmlDeviceGetPowerUsage", 1000),),
    "energy_joules_total": (_single("energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", 1000),),
    "fan_ratio": (_single("fan_ratio", "nvmlDeviceGetFanSpeed", 100),),
    "sm_clock_hertz": (_clock("sm_clock_hertz", "NVML_CLOCK_SM"),),
    "memory_clock_hertz": (_clock("memory_clock_hertz", "NVML_CLOCK_MEM"),),
    "throttle_power_cap": (_throttle("Event"), _throttle("Throttle")),
}
"""Read every time: calls by the name of their first value, each with the fallback for older drivers."""
SLOW: dict[str, tuple[Call, ...]] = {
    "power_limit_watts": (_single("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", 1000),),
    "ecc_corrected_errors_total": (_ecc,),
    "remapped_rows_corrected_total": (_rows,),
    "pcie_replays_total": (_single("pcie_replays_total", "nvmlDeviceGetPcieReplayCounter"),),
    "nvlink_crc_errors_total": (_nvlink,),
}
"""Read occasionally: these hardly change, and some cost the driver more."""
PCIE: dict[str, tuple[Call, ...]] = {"pcie_sent_bytes_per_second": (_pcie,)}
"""Takes 40 ms, during which the driver counts: one GPU at a time, between requests."""
INSTANCE = {"memory_used_bytes": FAST["memory_used_bytes"]}
"""Values of a MIG instance; the others belong to its GPU."""


class LostError(Exception):
    """The driver reports that a GPU is gone."""


class NvidiaCard:
    """One GPU or MIG instance: its handle, its description, and the calls it does not support."""

    def __init__(self, nvml: Any, handle: Any, facts: dict[str, Any]) -> None:
        """Read through `nvml` from `handle`; `facts` describe the GPU beside its name and UUID."""
        self.nvml, self.handle = nvml, handle
        names = {"name": nvml.nvmlDeviceGetName, "uuid": nvml.nvmlDeviceGetUUID}
        self.facts = {key: _text(nvml, call, handle) for key, call in names.items()} | facts
        self.instances: list[NvidiaCard] = []
        self.missing: dict[str, list[str]] = {}
        """Missing values with the reason: one of the constants and the driver's words."""
        self._choice: dict[str, int] = {}

    def forget(self) -> None:
        """Try unsupported calls again: MIG mode may be switched, a driver may be updated."""
        self._choice.clear()
        self.missing.clear()

    def values(self, calls: dict[str, tuple[Call, ...]]) -> dict[str, float]:
        """Return the available values of these calls; raise LostError for a lost GPU."""
        found: dict[str, float] = {}
        for name, ways in calls.items():
            found |= self._value(name, ways)
        return found

    def _value(self, name: str, ways: tuple[Call, ...]) -> dict[str, float]:
        for at in range(self._choice.get(name, 0), len(ways)):
            try:
                found = ways[at](self.nvml, self.handle)
            except (self.nvml.NVMLError, AttributeError, self.nvml.NVMLLibraryMismatchError) as error:
                if self.note(name, error) == FAILED:
                    return {}
                self._choice[name] = at + 1
            else:
                self.missing.pop(name, None)
                return found
        return {}

    def note(self, name: str, error: Exception) -> str:
        """Record why a value is missing and return the kind of reason; raise LostError for a lost GPU."""
        code = getattr(error, "value", 13)  # a binding that lacks the function counts as a driver that lacks it
        if code in _LOST:
            raise LostError(_LOST[code])
        kind = DENIED if code == _NO_PERMISSION else UNSUPPORTED if code in _NEVER else FAILED
        self.missing[name] = [kind, str(error)]
        return kind

    def processes(self) -> list[list[int | None]] | None:
        """Return pid and bytes of each process on this GPU, bytes None if the driver hides them; None if unknown."""
        if self._choice.get("processes"):
            return None
        found: dict[int, int | None] = {}
        try:
            for listed in (
                self.nvml.nvmlDeviceGetComputeRunningProcesses,
                self.nvml.nvmlDeviceGetGraphicsRunningProcesses,
            ):
                for process in listed(self.handle):
                    memory = process.usedGpuMemory
                    found[process.pid] = None if memory in {None, _UNKNOWN_MEMORY} else int(memory)
        except (self.nvml.NVMLError, AttributeError, self.nvml.NVMLLibraryMismatchError) as error:
            if self.note("own_memory_bytes", error) != FAILED:
                self._choice["processes"] = 1
            return None
        return [[pid, memory] for pid, memory in found.items()]


class Reader:
    """All GPUs of the machine, in the driver's order."""

    def __init__(self, nvml: Any) -> None:
        """Start the binding; raises its NVMLError if there is no driver."""
        self._nvml = nvml
        nvml.nvmlInit()
        self._cards: dict[int, NvidiaCard] = {}
        self._lost: dict[int, str] = {}
        self._turn = 0
        self._measure = False
        self._pcie: dict[int, dict[str, float]] = {}
        self._events = _EventSet(nvml)

    def read(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the fast values, and the `slow` ones and the list of `devices` if requested."""
        answer: dict[str, Any] = {"moment": time.monotonic_ns()}
        self._measure = bool(request.get("pcie"))
        if request.get("devices") or not self._cards:
            self._find()
            answer["devices"] = [{"index": index, **card.facts} for index, card in self._cards.items()]
            answer["driver"] = _text(self._nvml, lambda _: self._nvml.nvmlSystemGetDriverVersion(), None)
        calls = FAST | SLOW if request.get("slow") else FAST
        answer["gpus"] = [self._card(index, card, calls) for index, card in self._cards.items()]
        answer["gpus"] += [{"index": at, "lost": why} for at, why in self._lost.items() if at not in self._cards]
        answer["xids"] = self._events.take(self._cards)
        return answer

    def idle(self) -> None:
        """Measure slow values if the last request asked for `pcie`: the traffic of one GPU, a different one each time.

        The result is part of the next answer.
        """
        if not self._cards or not self._measure:
            return
        index = list(self._cards)[self._turn % len(self._cards)]
        self._turn += 1
        try:
            self._pcie[index] = self._cards[index].values(PCIE)
        except LostError as error:
            self._lost[index] = str(error)

    def _card(self, index: int, card: NvidiaCard, calls: dict[str, tuple[Call, ...]]) -> dict[str, Any]:
        try:
            found: dict[str, Any] = {"index": index, "values": card.values(calls) | self._pcie.pop(index, {})}
            found["processes"] = card.processes()
            found["mig"] = [
                {"index": at.facts["index"], "values": at.values(INSTANCE), "processes": at.processes()}
                for at in card.instances
            ]
        except LostError as error:
            self._lost[index] = str(error)
            return {"index": index, "lost": str(error)}
        self._lost.pop(index, None)
        if card.missing:
            found["missing"] = card.missing
        return found

    def _find(self) -> None:
        """Add GPUs that can be opened now, and list the MIG instances again."""
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                card = self._cards.get(index) or self._open(index)
                card.forget()
                card.instances = list(self._instances(card))
            except (LostError, self._nvml.NVMLError) as error:
                self._lost[index] = str(error)
                continue
            card.facts["mig"] = [instance.facts for instance in card.instances]
            self._cards[index] = card

    def _open(self, index: int) -> NvidiaCard:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        card = NvidiaCard(self._nvml, handle, {})
        card.facts["memory_total_bytes"] = card.values(INSTANCE).get("memory_total_bytes")
        self._events.register(handle)
        return card

    def _instances(self, card: NvidiaCard) -> Iterable[NvidiaCard]:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetMaxMigDeviceCount(card.handle) if nvml.nvmlDeviceGetMigMode(card.handle)[0] else 0
        except (nvml.NVMLError, AttributeError) as error:
            card.note("mig", error)
            del card.missing["mig"]  # a GPU without MIG is normal
            return
        for at in range(count):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, at)
                ids = (nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetComputeInstanceId(handle))
            except nvml.NVMLError:  # a slot without an instance
                continue
            yield NvidiaCard(nvml, handle, {"index": at, "ids": ids})


class _EventSet:
    """The driver's error events (Xids), if it supports them."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:  # vGPU and WSL have no events
            self._set = None

    def register(self, handle: Any) -> None:
        if self._set is None:
            return
        try:
            self._nvml.nvmlDeviceRegisterEvents(handle, _XID, self._set)
        except self._nvml.NVMLError:  # this card reports no Xids; every other value is still read
            return

    def take(self, cards: dict[int, NvidiaCard]) -> list[list[int]]:
        """Return index and number of the Xids since the last call, without waiting."""
        places = {_address(card.handle): index for index, card in cards.items()}
        found: list[list[int]] = []
        while self._set is not None and len(found) < _MOST_XIDS:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError:  # none is waiting, or a lost GPU spoils the set until the next call
                break
            index = places.get(_address(event.device))
            if event.eventType == _XID and index is not None:
                found.append([index, int(event.eventData)])
        return found


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _text(nvml: Any, call: Callable[[Any], Any], handle: Any) -> str:
    try:
        found = call(handle)
    except (nvml.NVMLError, UnicodeDecodeError):
        return ""
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
