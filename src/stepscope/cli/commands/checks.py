"""The checks of `doctor`: each yields findings and changes nothing."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import struct
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core import ring, run_description
from stepscope.core.errors import UsageError
from stepscope.core.identity import Process, identify
from stepscope.core.numbers import format_value
from stepscope.core.places import RING_SUFFIX, Places, choose_root
from stepscope.core.redact import redact
from stepscope.core.spawn import SpawnError, interpreter
from stepscope.recorder import native
from stepscope.store.known_roots import reachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stepscope.core.config import Config
    from stepscope.exporters.sinks.address import SinkAddress
    from stepscope.samplers.nvidia import Gpus
    from stepscope.store.known_roots import KnownRoot

OK, NOTE, OFF, BAD = "ok", "note", "off", "bad"
"""All is well; works, but you should know; not there or not used; recording would not work."""

DEPENDENCIES = {
    "numpy": "runs cannot be read",
    "duckdb": "runs can neither be sealed nor read",
    "PyYAML": "no configuration file can be loaded",
}
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "fuse.sshfs", "9p", "afs", "glusterfs"}
SETTING = "exporters.sinks"
PROBE_SECONDS = 5.0
"""Seconds that all sinks together have to answer."""
UNREACHED = "start it, or check that this machine can reach it"
NOT_LOST = "until then its rows wait in the run"
MOST_ROOTS = 10
"""Folders of runs that are listed."""
SPARE = 256 << 20
"""Free bytes below which a warning is shown."""
_FLOCK = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: type, whence, start, length, pid."""


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    topic: str
    state: str
    text: str
    remedy: str = ""


def python(environ: Mapping[str, str], version: tuple[int, ...] = sys.version_info[:3]) -> Iterator[Check]:
    """Check the interpreter."""
    text = f"{'.'.join(map(str, version))} {sys.implementation.name}, {sys.executable or 'unknown path'}"
    yield Check("python", OK, text)
    if environ.get("PYTHONDONTWRITEBYTECODE"):
        cause = "PYTHONDONTWRITEBYTECODE is set: the watcher compiles its code at every start"
        yield Check("python", NOTE, cause, "unset it, or run `python -m compileall` on the installed package")
    try:
        interpreter()
    except SpawnError as error:
        cause = f"no watcher can be started ({error}): a thread of the trainer records the run"
        yield Check("python", NOTE, cause, "use a plain Python interpreter")


def hot_path() -> Iterator[Check]:
    """Check whether the hot path in C is built."""
    if native.available() is not None:
        yield Check("recorder", OK, "the recorder's hot path runs in C")
    elif os.environ.get(native.PURE):
        yield Check("recorder", OFF, f"the recorder's hot path runs in Python: {native.PURE} is set")
    else:
        cause = "the recorder's hot path runs in Python, about ten times slower: its C part is not built"
        yield Check("recorder", NOTE, cause, "install a C compiler and Python's headers, then stepscope again")


def platform(name: str = sys.platform) -> Iterator[Check]:
    """Check the operating system."""
    facts = os.uname()
    text = f"{facts.sysname} {facts.release} {facts.machine}"
    if name.startswith("linux"):
        yield Check("platform", OK, text)
    else:
        yield Check("platform", NOTE, f"{text}: tested on Linux only", "expect problems, and report them")


def packages() -> Iterator[Check]:
    """Check the packages we need, without importing them, and torch."""
    found = []
    for name, loss in DEPENDENCIES.items():
        version = _version(name)
        if version is None:
            yield Check("packages", BAD, f"{name} is not installed: {loss}", f"pip install {name}")
        else:
            found.append(f"{name} {version}")
    if found:
        yield Check("packages", OK, ", ".join(found))
    torch = _version("torch")
    yield Check("torch", OK, torch) if torch else Check("torch", OFF, "not installed; it is optional")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def configuration(config: Config, files: list[Path], error: str | None) -> Iterator[Check]:
    """Check the configuration files."""
    names = ", ".join(str(path) for path in files)
    yield Check("configuration", OK, names) if files else Check("configuration", OFF, "no file; the defaults apply")
    if error is not None:
        yield Check("configuration", NOTE, error, "until then only the valid settings apply")
    for notice in config.notices:
        if notice != error:
            yield Check("configuration", NOTE, notice)
    if not config.get("recorder.enabled"):
        where = config.sources.get("recorder.enabled", "the settings")
        yield Check("configuration", BAD, f"recorder.enabled is false ({where})", "set it to true to record")


def runs_root(root: Path, mounts: str = "/proc/self/mounts") -> Iterator[Check]:
    """Check that the folder of the runs is writable, and its free space."""
    place = next((folder for folder in (root, *root.parents) if folder.exists()), Path("/"))
    made = "" if place == root else " (made at the first run)"
    problem = _write_problem(place, 4096)
    if problem:
        yield Check("runs", BAD, f"{root} cannot be written: {problem}", "choose another with STEPSCOPE_DIR or dir=")
        return
    free = _space(place)[1]
    text = f"{root}{made}, {format_value(free, 'bytes')} free"
    kind = file_system(place, mounts)
    yield Check("runs", OK, f"{text}, on {kind}" if kind in NETWORK else text)
    if free < SPARE:
        yield Check("runs", NOTE, "little space is left", "free some; `stepscope gc` removes old runs")


def known_roots(roots: Sequence[KnownRoot]) -> Iterator[Check]:
    """List the folders in which this user has recorded runs."""
    shown = roots[:MOST_ROOTS]
    there = reachable([root.path for root in shown])
    for root in shown:
        when = time.strftime("%Y-%m-%d", time.localtime(root.used))
        away = "" if root.path in there else ", which is missing now"
        yield Check("known runs", OK, f"{root.path}, last used on {when}{away}")
    if len(roots) > len(shown):
        yield Check("known runs", OK, f"and {len(roots) - len(shown)} more folders")


def _write_problem(folder: Path, size: int) -> str | None:
    """Try to reserve an unnamed file; return the error, if any."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _space(folder: Path) -> tuple[int, int]:
    """Return total and free bytes of a file system."""
    facts = os.statvfs(folder)
    return facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize


def file_system(path: Path, mounts: str = "/proc/self/mounts") -> str:
    """Return the type of the file system that holds `path`; empty if unknown."""
    best, kind = "", ""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    resolved = str(path.resolve())
    for line in lines:
        _, point, name, *_ = [*line.split(" "), "", "", ""]
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind


def ring_place(places: Places, size: int, *, wanted: bool = True) -> Iterator[Check]:
    """Report where a ring of `size` bytes would go, and why; `wanted` is recorder.memory_map."""
    kind = file_system(places.disk)
    if kind in NETWORK:
        text = f"{places.disk} is on {kind}: locks and rings need local storage"
        yield Check("runtime", NOTE, text, "set STEPSCOPE_RUNTIME_DIR to a local folder")
    else:
        yield Check("runtime", OK, f"{places.disk}, {format_value(_space(places.disk)[1], 'bytes')} free")
    chosen = choose_root(places, size) if wanted else places.disk
    yield _shared_memory(places, size, chosen, wanted)
    problem = _write_problem(chosen, size)
    if problem and chosen != places.disk:
        yield Check("ring", NOTE, f"shared memory cannot be reserved ({problem}): the ring goes to {places.disk}")
        problem = _write_problem(places.disk, size)
    if problem:
        text = f"{format_value(size, 'bytes')} cannot be reserved: {problem}"
        yield Check("ring", BAD, text, "free space in the runtime folder, or set STEPSCOPE_RUNTIME_DIR")


def _shared_memory(places: Places, size: int, chosen: Path, wanted: bool) -> Check:  # noqa: FBT001 - private
    topic = "shared memory"
    if places.shared is None:
        return Check(topic, OFF, "not available: rings go to a file on local disk")
    total, free = _space(places.shared)
    ours = sum(path.stat().st_size for path in places.shared.glob(f"*/*{RING_SUFFIX}"))
    text = f"{format_value(total, 'bytes')}, {format_value(free, 'bytes')} free, {format_value(ours, 'bytes')} ours"
    if not wanted:
        return Check(topic, OFF, f"{text}; recorder.memory_map is false: rings go to local disk")
    if chosen == places.shared:
        return Check(topic, OK, f"{text}; a ring of {format_value(size, 'bytes')} goes there")
    limit = "1/16 of all memory" if ours + size > total / 16 else "1/8 of the free memory"
    cause = f"{text}; one more ring would take more than {limit}, so it goes to local disk"
    return Check(topic, NOTE, cause, "no data is lost; in Docker, --shm-size=1g makes room")


def surroundings(environ: Mapping[str, str], root: str = "/", pid: int | None = None) -> Iterator[Check]:
    """Check container, control group and process id: whether the watcher survives the trainer."""
    kind = run_description.container(environ, root)
    limit = run_description.memory(root)["limit_bytes"]
    bound = f", memory limit {format_value(limit, 'bytes')}" if limit else ""
    yield Check("container", OK, f"{kind}{bound}") if kind else Check("container", OFF, f"none{bound}")
    if (os.getpid() if pid is None else pid) == 1:
        cause = "a process started like this one is PID 1: when it dies, its container and the watcher end too"
        yield Check("container", NOTE, cause, "start it under an init: docker run --init, or sh -c")
    if _kills_together(root):
        cause = "memory.oom.group is set: an out-of-memory kill takes trainer and watcher together"
        yield Check("container", NOTE, cause, "the next reader infers the end of the run")


def _kills_together(root: str) -> bool:
    """Return whether the control group of this process is killed as a whole."""
    try:
        own = Path(root, "proc/self/cgroup").read_text(encoding="ascii", errors="replace")
        place = next((line[3:] for line in own.splitlines() if line.startswith("0::")), "/")
        setting = Path(root, "sys/fs/cgroup", place.lstrip("/"), "memory.oom.group")
        return setting.read_text(encoding="ascii").strip() == "1"
    except OSError:
        return False


def launcher(environ: Mapping[str, str], project: str = "default") -> Iterator[Check]:
    """Report which run and rank a process started here would be."""
    try:
        found = identify(environ, project=project, now=time.time(), token="xxxx", parent=Process.current())  # noqa: S106
    except UsageError as error:
        yield Check("launcher", BAD, str(error), "until then no run is recorded")
        return
    which = "a new run" if found.source == "new" else f"run {found.run_id} (from {found.source})"
    yield Check("launcher", OK, f"a process started here is rank {found.rank} of {found.world_size} of {which}")
    for warning in found.warnings:
        yield Check("launcher", NOTE, warning)


@dataclass(frozen=True)
class LiveRing:
    """A ring, and which of its two ends are held by a process."""

    path: Path
    run: str
    rank: int
    pid: int
    trainer: bool
    consumer: bool


def rings(places: Places) -> Iterator[LiveRing | str]:
    """Yield the rings of this user, or why one cannot be read; takes no locks."""
    for path in places.rings():
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:  # its run has just ended
            continue
        except OSError as error:
            yield f"{path}: {error.strerror}"
            continue
        try:
            head = os.pread(descriptor, ring.HEADER_BYTES, 0)
            who = ring.RingIdentity.decode(head[ring.IDENTITY_OFFSET :])
            held = [is_locked(descriptor, byte) for byte in (ring.LOCK_WRITER, ring.LOCK_READER)]
            yield LiveRing(path, who.run_path, who.rank, who.pid, *held)
        except (ValueError, struct.error, TypeError) as error:
            yield f"{path}: {error}"
        finally:
            os.close(descriptor)


def is_locked(descriptor: int, byte: int) -> bool:
    """Return whether another process holds the lock on a byte, without taking it."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def recording(places: Places, salvaged: int, notes: list[str]) -> Iterator[Check]:
    """Report live recordings on this machine, recovered rings, and rings without a watcher."""
    found = list(rings(places))
    live = [item for item in found if isinstance(item, LiveRing) and item.trainer]
    if salvaged:
        yield Check("rings", OK, f"recovered the data of crashed processes: {salvaged} rings")
    watched = sum(item.consumer for item in live)
    runs = len({item.run for item in live})
    text = f"being recorded here now: runs {runs}, processes {len(live)}, of these watched {watched}"
    yield Check("rings", OK, text) if live else Check("rings", OFF, "nothing is being recorded here")
    for item in live:
        if not item.consumer:
            text = f"rank {item.rank} of {item.run} (pid {item.pid}) has no watcher"
            yield Check("rings", NOTE, text, "its rows wait in memory; its next log() after 10 s starts a watcher")
    for problem in [*notes, *(item for item in found if isinstance(item, str))]:
        yield Check("rings", NOTE, problem)


def machine(gpus: Gpus, absent: Mapping[str, str]) -> Iterator[Check]:
    """Check the GPUs, and list the values of the machine that cannot be sampled, with the reasons."""
    for device in gpus.devices:
        size = format_value(device.memory_total_bytes, "bytes") if device.memory_total_bytes else "memory unknown"
        yield Check("gpu", OK, f"{device.index}: {device.name}, {size}")
    if not gpus.devices:
        cause, _, remedy = gpus.reason.partition("; ")
        yield Check("gpu", OFF, cause, remedy)
    for what, why in absent.items():
        if what not in {"gpu", "amd", "nvidia"}:
            cause, _, remedy = why.partition("; ")
            yield Check("samples", OFF, f"{what}: {cause}", remedy)


def sinks(config: Config, environ: Mapping[str, str], seconds: float = PROBE_SECONDS) -> Iterator[Check]:
    """Ask each sink of the configuration whether it would take rows; all at once, `seconds` in all."""
    given = config.get(SETTING)
    if not given:
        return
    from stepscope.exporters.sinks.address import sinks_of  # and its clients, only where there are sinks

    found, problems = sinks_of({SETTING: given})
    for problem in problems:
        cause, _, remedy = problem.rpartition("; ")
        yield Check("sinks", NOTE, cause, remedy)
    answers: dict[str, Check] = {}
    threads = [threading.Thread(target=_probe, args=(one, environ, answers), daemon=True) for one in found]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for address, thread in zip(found, threads, strict=True):
        thread.join(max(0.0, until - time.monotonic()))
        silent = f"{address.name}: it does not answer within {format_value(seconds, 'seconds')}"
        yield answers.get(address.name) or Check("sinks", NOTE, silent, f"{UNREACHED}; {NOT_LOST}")


def _probe(address: SinkAddress, environ: Mapping[str, str], answers: dict[str, Check]) -> None:
    """Ask one sink, in a thread, and keep the answer."""
    from stepscope.exporters.sinks.sink import SinkDownError, SinkError
    from stepscope.exporters.sinks.table import new_sink

    def keep(state: str, text: str, remedy: str = "") -> None:
        answers[address.name] = Check("sinks", state, f"{address.name}: {text}", remedy)

    try:
        sink = new_sink(address, environ)
        try:
            keep(OK, sink.probe())
        finally:
            sink.close()
    except UsageError as error:
        cause, _, remedy = str(error).rpartition("; ")
        keep(NOTE, cause, remedy)
    except SinkError as error:
        if address.name not in answers:  # an answer counts, even if closing fails
            remedy = UNREACHED if isinstance(error, SinkDownError) else "check its address, its token and your rights"
            keep(NOTE, str(error), f"{remedy}; {NOT_LOST}")
    except Exception as error:  # noqa: BLE001 - a fault of one sink must not end the report; its text may hold a secret
        keep(NOTE, f"it cannot be checked ({type(error).__name__})", "report this fault")


def variables(environ: Mapping[str, str]) -> Iterator[Check]:
    """List our own variables that are set."""
    ours = redact({name: value for name, value in environ.items() if name.startswith("STEPSCOPE_")})
    if ours:
        yield Check("environment", OK, " ".join(f"{name}={value}" for name, value in sorted(ours.items())))
