"""Start a run: find its identity, create its folder and its ring, start its watcher."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core import ring, status
from stepscope.core.clock import boot_id
from stepscope.core.coordinates import PLACED, of_environment
from stepscope.core.defaults import VALUES, Defaults
from stepscope.core.environment import ours
from stepscope.core.identity import Distributed, Identity, Process, identify
from stepscope.core.places import (
    ALERTING_SUFFIX,
    HELD,
    REQUEST_SUFFIX,
    RING_SUFFIX,
    SCHEMA_SUFFIX,
    SINKS_SUFFIX,
    SPILL_SUFFIX,
    STACKS_SUFFIX,
    WAKE_SUFFIX,
    Places,
    choose_root,
    find_places,
    private_directory,
)
from stepscope.core.redact import jsonable, redact
from stepscope.core.ring import lock_holder
from stepscope.core.run_description import describe
from stepscope.core.standard_streams import closed_streams_reserved
from stepscope.recorder.complaints import Complaints, tell
from stepscope.recorder.declarations import Declarations
from stepscope.recorder.device import DeviceValues
from stepscope.recorder.intake import Intake
from stepscope.recorder.mapping import Mapping, create
from stepscope.recorder.native import settle as settle_hot_path
from stepscope.recorder.overflow import Overflow
from stepscope.session.answering import Answering
from stepscope.session.current import CURRENT, keep_labels
from stepscope.session.flight_recorder import keep_collectives
from stepscope.session.requests import answer
from stepscope.session.run import Run
from stepscope.session.stacks import register
from stepscope.session.watching import Watch
from stepscope.store.layout import FORMAT_VERSION, RunFolder
from stepscope.store.meta import check_format

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.core.clock import Pair
    from stepscope.core.config import Config

DEFAULT_PROJECT = "default"
SINKS = "exporters.sinks"
WATCHED = ("gradients", "parameters", "layers", "modules", "memory", "flops")
"""The choices of `recorder.watch` in the configuration."""
EVENT_FILES, BOARD = "exporters.tensorboard.dir", "exporters.grafana.path"


def init(  # noqa: PLR0913 - the public surface: each is a fact about the run
    project: str | None = None,
    name: str | None = None,
    config: Any = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 - the public spelling
    config_file: str | os.PathLike[str] | None = None,
    run_id: str | None = None,
    *,
    resume: bool = False,
    dashboard: bool = False,
    tags: Sequence[str] = (),
    notes: str = "",
    group: str = "",
    **settings: Any,
) -> Run:
    """Start a run and make it the current one. Never raises: if a run cannot be recorded, that is reported once.

    At an interactive prompt, as in a notebook, the previous run is ended first.

    Args:
        project: folder of runs that belong together; "default" if omitted.
        name: display name of the run; any text.
        config: configuration of the run (a dict, dataclass, namespace …); stored without secrets.
        dir: root of all runs; by default STEPSCOPE_DIR, `store.dir` of the configuration, or ./stepscope-runs.
        config_file: another configuration file, in addition to stepscope.yaml and STEPSCOPE_CONFIG.
        run_id: continue or create the run with this id.
        resume: the id is known to exist; do not warn about another attempt.
        dashboard: serve the page of all runs beside the training, as long as it is viewed or a run is live.
        tags: words to find the run by.
        notes: free text about the run.
        group: what the run belongs to inside its project, such as a sweep.
        **settings: any configuration key, as in `store__dir="…"` or `recorder={"enabled": False}`.
            An unknown one is reported with the closest valid spelling.
    """
    if CURRENT.launched is not None and CURRENT.launched.recording and run_id is None:
        return CURRENT.join(config, name, {"tags": tags, "notes": notes, "group": group})
    if dashboard:
        settings["web__enabled"] = True
    CURRENT.end_at_prompt()
    try:
        shown = None if name is None else str(name)
        run = _open(project or DEFAULT_PROJECT, shown, config, dir, config_file, run_id, resume, settings)
    except Exception as error:  # noqa: BLE001 - a monitor that cannot start must not stop the training; it reports why
        run = Run.off(_reason(error))
    if (tags or notes or group) and run.recording and run.rank == 0:
        keep_labels(run.path, {"tags": tags, "notes": notes, "group": group})
    CURRENT.adopt(run)
    return run


def _reason(error: Exception) -> str:
    text = str(error)
    if text.startswith("cannot "):
        return f"{text} (this run is not recorded)"
    return f"cannot record this run: {text or type(error).__name__}; fix that or choose another dir="


def _unused(folder: RunFolder) -> RunFolder:
    """Create the folder of a new run: two processes that start in the same second may draw the same id."""
    path = folder.path
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            path = path.with_name(path.name + os.urandom(2).hex())
        else:
            return RunFolder(path)


def _open(
    project: str,
    name: str | None,
    config: Any,
    root: str | os.PathLike[str] | None,
    config_file: str | os.PathLike[str] | None,
    run_id: str | None,
    resume: bool,  # noqa: FBT001 - private
    settings: dict[str, Any],
) -> Run:
    chosen = configure(config_file, settings)
    identity = identify(
        os.environ,
        project=project,
        now=time.time(),
        token=os.urandom(2).hex(),
        parent=Process.current(),
        run_id=run_id,
        resume=resume,
        distributed=Distributed.current(),
    )
    if identity.rank == 0:
        for notice in (*chosen.notices, *identity.warnings):
            tell(notice)
    if not _wanted(chosen, identity):
        return Run.off()
    base = Path(root if root is not None else chosen.get("store.dir"))
    folder = RunFolder((base / project / identity.run_id).absolute())
    if identity.source == "new":
        folder = _unused(folder)
        identity = identity._replace(run_id=folder.path.name)
    if folder.run_file.exists():
        check_format(folder)
    folder.make()
    attempt = _claim(folder, identity, is_expected=run_id is None or resume)
    folder.describe(
        {
            "format": FORMAT_VERSION,
            "id": identity.run_id,
            "project": project,
            "name": name or identity.run_id,
            "source": identity.source,
            "world_size": identity.world_size,
            "created": time.time_ns() // 1000,
            **describe(os.environ, argv=sys.argv, config=config),
            "settings": redact(jsonable(chosen.shown())),
        }
    )
    keep_collectives(os.environ, folder.path, attempt, identity.world_size)
    with closed_streams_reserved():
        run = record(folder, identity, attempt, chosen)
    if chosen.get("recorder.console") is True:
        run.keep_console()
    run.name, run.project = name or identity.run_id, project
    _place(run, identity)
    if identity.rank == 0 and chosen.get("web.enabled"):
        _serve(base.absolute(), chosen)
    return run


def _serve(base: Path, chosen: Config | Defaults) -> None:
    from stepscope.session.page import serve_beside  # most runs do not need it

    more = (str(chosen.get("web.refresh_interval")), ",".join(chosen.get("web.metrics")))
    serve_beside(base, str(chosen.get("web.host")), int(chosen.get("web.port")), *more)


def _claim(folder: RunFolder, identity: Identity, *, is_expected: bool) -> int:
    """Return the attempt of this process; tell it if this rank exists already and that is, or may be, a mistake."""
    # torchrun counts neither the restarts in which nodes join or leave, nor those before a node came.
    is_elastic = "TORCHELASTIC_RESTART_COUNT" in os.environ and identity.world_size > 1
    attempt = folder.claim(identity.attempt, identity.rank, identity.world_size if is_elastic else 0)
    if attempt > (identity.attempt or 0):
        if identity.world_size > 1 and _is_recorded_here(folder, identity.rank):
            cause = f"another process on this machine is rank {identity.rank} of run {identity.run_id}"
            tell(f"{cause}: this one is recorded as attempt {attempt}; give each process a rank of its own (RANK)")
        elif not is_expected:
            tell(f"run {identity.run_id} exists: this is attempt {attempt} of it; pass resume=True if you mean that")
    return attempt


def _is_recorded_here(folder: RunFolder, rank: int) -> bool:
    """Return whether another process on this machine, which is alive, records this rank of a job of several ranks."""
    for path in find_places().rings(str(folder.path)):
        if path.name.split(".")[1:2] == [str(rank)]:
            with contextlib.suppress(OSError):  # it has ended, and its ring is gone
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    if lock_holder(descriptor, ring.LOCK_WRITER) is not None:
                        return True
                finally:
                    os.close(descriptor)
    return False


def _place(run: Run, identity: Identity) -> None:
    """Record where this rank is, as its launcher says; a job of one rank has no places."""
    if identity.world_size < 2:
        return
    local = {"local_rank": identity.local_rank, "node_rank": identity.node_rank}
    known = {name: number for name, number in local.items() if number is not None}
    run.own_event(PLACED, coordinates=of_environment(os.environ), source="environment", **known)


def _wanted(config: Config | Defaults, identity: Identity) -> bool:
    first_only = config.get("recorder.track_rank_0_only")
    return bool(config.get("recorder.enabled")) and not (first_only and identity.rank != 0)


def configure(config_file: str | os.PathLike[str] | None, settings: dict[str, Any]) -> Config | Defaults:
    """Return the configuration; without any, do not load the configuration reader."""
    named = config_file is not None or os.environ.get("STEPSCOPE_CONFIG")
    if not settings and not named and not os.path.exists("stepscope.yaml") and not ours(os.environ):
        return Defaults(os.environ.get("STEPSCOPE_DIR", ""))
    from stepscope.core.config import discover, load_or_default
    from stepscope.session.arguments import known_settings

    files = discover(Path.cwd(), os.environ, None if config_file is None else os.fspath(config_file))
    known, refused = known_settings(settings)
    config = load_or_default(files, known, environ=os.environ)
    return replace(config, notices=(*refused, *config.notices))


def record(
    folder: RunFolder, identity: Identity, attempt: int, config: Config | Defaults, followed: Pair | None = None
) -> Run:
    """Create the ring and the recorder, and start the watcher.

    `followed` is when a run of another tool began: such a run has times of its own, which this pair alone maps.
    """
    settle_hot_path()
    places = find_places()
    mapping, descriptor = _make_ring(folder, places, identity, attempt, config, followed)
    born = time.monotonic_ns()
    declarations = Declarations(mapping, descriptor, config.get("recorder.max_names"))
    devices = DeviceValues() if config.get("recorder.device_values") else DeviceValues(0)
    intake = Intake(declarations, Complaints(), config.get("recorder.max_events_per_second"), devices)
    overflow = _overflow(mapping, places, config.get("recorder.spill_bytes"))
    settings = (_watcher_settings(config),)
    watch = Watch(folder.path, settings, is_drained=partial(_is_drained, mapping), count_lost=overflow.lost)
    assert mapping.path is not None  # noqa: S101 - just made
    request_path = str(mapping.path.with_suffix(REQUEST_SUFFIX))
    run = Run(
        mapping, intake, run_id=identity.run_id, path=folder.path, rank=identity.rank, attempt=attempt, watch=watch
    )
    run.overflow, run.declarations = overflow, declarations

    def look(heartbeat: int, now: int) -> None:
        if mapping.words[ring.WORD_STATUS] != status.GONE:  # else no process could write the run any more
            watch.look(heartbeat, born, now)
        run.give_back()
        answer(request_path, run)
        if run.answering is not None:
            run.answering.look()

    intake.on_look, intake.ring = look, mapping.path
    run.overhead_budget = config.get("recorder.overhead_budget")
    run.watched = {name: config.get(f"recorder.watch.{name}") for name in WATCHED}
    if config.get("watcher.stacks"):
        run.stacks = register(mapping.path.with_suffix(STACKS_SUFFIX))
        run.answering = Answering(mapping.path)
        run.answering.look()
    HELD.add(mapping.path)
    _leave_settings(mapping.path, config)
    watch.begin(mapping.path, places)
    run.may_catch = config.get("recorder.catch") is not False
    if config.get("recorder.catch") is True:
        run.catch()
    run.console_bytes = 0 if config.get("recorder.console") is False else config.get("store.console_bytes")
    if os.getpid() == 1:
        tell("this process is PID 1: if its container dies, nobody is left to tell why; the next reader infers it")
    return run


def _make_ring(
    folder: RunFolder,
    places: Places,
    identity: Identity,
    attempt: int,
    config: Config | Defaults,
    followed: Pair | None,
) -> tuple[Mapping, int]:
    """Create ring and schema file: in shared memory, or on local disk if there is no room or by choice."""
    size = config.get("recorder.ring_bytes")
    first = choose_root(places, size) if config.get("recorder.memory_map") else places.disk
    problem: OSError | None = None
    for root in (first, places.disk, places.disk):  # twice: the last watcher of this run may be deleting the folder
        try:
            place = private_directory(places.of_run(str(folder.path), root))
            schema = place / f"{attempt}.{identity.rank}.{os.urandom(4).hex()}{SCHEMA_SUFFIX}"
            facts = _ring_identity(folder, identity, attempt, places.disk / place.name, schema)
            if followed is not None:
                facts = facts._replace(**followed._asdict(), extra={**facts.extra, ring.FOLLOWED: True})
            welcome = (lambda: choose_root(places, 0) == places.shared) if root == places.shared else lambda: True
            return _ring_in(schema, size, facts, welcome)
        except OSError as error:
            problem = error
    raise problem or OSError("no place for the ring")


def _overflow(mapping: Mapping, places: Places, spill_bytes: int) -> Overflow:
    """Return the overflow handling of the ring: spill to shared memory if we stay a small guest, else to disk."""
    path = mapping.path
    assert path is not None  # noqa: S101 - just made

    def candidates() -> list[Path]:
        beside = path.with_suffix(SPILL_SUFFIX)
        if places.shared is None or places.shared not in path.parents:
            return [beside]
        other = private_directory(places.disk / path.parent.name) / beside.name
        return [beside, other] if choose_root(places, spill_bytes) == places.shared else [other]

    return Overflow(mapping, spill_bytes, candidates, path.with_suffix(WAKE_SUFFIX))


def _is_drained(mapping: Mapping) -> bool:
    """Return whether a process holds the ring's consumer lock, as far as that is visible here."""
    try:
        return sys.platform != "linux" or lock_holder(mapping.descriptor, ring.LOCK_READER) is not None
    except OSError:  # a file system without such locks
        return True


def _ring_in(schema: Path, size: int, facts: ring.RingIdentity, welcome: Callable[[], bool]) -> tuple[Mapping, int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(schema, flags, 0o600)
    try:
        return create(schema.with_suffix(RING_SUFFIX), size, facts, is_welcome=welcome), descriptor
    except OSError:
        os.close(descriptor)
        with contextlib.suppress(OSError):  # the exception says why there is no ring
            schema.unlink()
        raise


def _ring_identity(folder: RunFolder, identity: Identity, attempt: int, disk: Path, schema: Path) -> ring.RingIdentity:
    return ring.RingIdentity(
        run_path=str(folder.path),
        rank=identity.rank,
        attempt=attempt,
        node_rank=identity.node_rank or 0,
        pid=os.getpid(),
        boot_id=boot_id(),
        wall_ns=time.time_ns(),
        monotonic_ns=time.monotonic_ns(),
        schema_path=str(schema),
        extra={
            "created": folder.created(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "at_prompt": hasattr(sys, "ps1"),
            "spill": str(disk / schema.with_suffix(SPILL_SUFFIX).name),
        },
    )


def _leave_settings(ring: Path, config: Config | Defaults) -> None:
    """Write the settings of alerts and sinks beside the ring, for the watcher: a command line would show secrets."""
    given = {key: config.get(key) for key in config.shown()}
    alerts = {key: value for key, value in given.items() if key.startswith(("alerting.", "watcher.analysis."))}
    sinks: dict[str, Any] = {key: given[key] for key in (SINKS, "alerting.page_url") if SINKS in given and key in given}
    if sinks:
        from stepscope.exporters.sinks.address import sinks_of  # most runs have none

        for problem in sinks_of(sinks)[1]:
            tell(problem)
        with contextlib.suppress(OSError):  # the folder is gone
            sinks["cwd"] = os.getcwd()  # relative paths in addresses count from here, not from where the sender is
    otherwise = "the default rules apply without notifications"
    for suffix, what, kept, loss in (
        (ALERTING_SUFFIX, "alert settings", alerts, otherwise),
        (SINKS_SUFFIX, "sinks", sinks, "`stepscope tee` sends the run to them"),
    ):
        if kept:
            from stepscope.core.access import write_private  # most runs have no such settings

            try:
                write_private(ring.with_suffix(suffix), json.dumps(kept))
            except OSError as error:
                tell(f"cannot pass the {what} to the watcher: {error}; {loss}")


def _watcher_settings(config: Config | Defaults) -> str:
    """Return the part of the configuration that the watcher needs, as JSON."""
    sections = ("watcher.", "samplers.", "store.", "exporters.")
    chosen = {key: config.get(key) for key in VALUES if key.startswith(sections)}
    # Absolute paths: the watcher may start in another folder.
    chosen[EVENT_FILES] = os.path.abspath(chosen[EVENT_FILES] or "tensorboard")
    chosen[BOARD] = os.path.abspath(chosen[BOARD]) if chosen[BOARD] else ""
    return json.dumps(chosen)
