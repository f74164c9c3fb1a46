"""The settings of Stepscope: the keys of each section, their compatible spellings, and implied defaults.

`default_schema` puts them together. A part that gets built moves its keys from `PLANNED` to its own section.
"""

# ruff: noqa: FBT003 - a table, where true and false are defaults

from __future__ import annotations

from stepscope.core import thresholds
from stepscope.core.kinds import (
    DURATION,
    FLOAT,
    FRACTION,
    GIBIBYTES,
    INTEGER,
    INTEGERS,
    LIST,
    MEASURE,
    MIB,
    PATH,
    SIZE,
    SWITCH,
    TEXT,
    TEXTS,
    Kind,
)
from stepscope.core.schema import SECTIONS, Implication, Key, Schema
from stepscope.core.spellings import ALIASES

BUILT = (
    Key("recorder.enabled", SWITCH, True, "", "record at all; false makes every call a no-op"),
    Key(
        "recorder.ring_bytes",
        SIZE,
        4 * MIB,
        "bytes",
        "shared memory of each rank for rows on their way to disk",
        minimum=MIB // 4,
        maximum=64 * MIB,
    ),
    Key(
        "recorder.spill_bytes",
        SIZE,
        128 * MIB,
        "bytes",
        "room of each rank for a burst that fills its ring, used while needed; 0: none",
        minimum=0,
        maximum=1024 * MIB,
    ),
    Key(
        "recorder.memory_map",
        SWITCH,
        True,
        "",
        "keep the ring in shared memory; false: in a reserved file on local disk",
    ),
    Key(
        "recorder.high_frequency",
        SWITCH,
        False,
        "",
        "for loops of more than 100 steps a second: a larger ring, drained more often",
    ),
    Key("recorder.distributed", SWITCH, True, "", "record every rank; false: rank 0 alone"),
    Key("recorder.track_rank_0_only", SWITCH, False, "", "leave all ranks but 0 inert"),
    Key(
        "recorder.max_names",
        INTEGER,
        200_000,
        "names",
        "distinct metric names of one rank; rows with more are refused and counted",
        minimum=1,
    ),
    Key(
        "recorder.max_events_per_second",
        INTEGER,
        1000,
        "events/s",
        "texts and mappings logged as events; the excess is dropped and counted",
        minimum=0,
    ),
    Key(
        "recorder.device_values",
        SWITCH,
        True,
        "",
        "take scalars that live on a device, without waiting for it; false: they are skipped and counted",
    ),
    Key(
        "recorder.overhead_budget",
        FRACTION,
        0.01,
        "fraction",
        "of a step that hooks into a framework may cost; beyond it only every n-th step is measured",
        minimum=0.0,
        maximum=1.0,
    ),
    Key(
        "watcher.drain_interval",
        DURATION,
        0.1,
        "seconds",
        "between two drains of the rings to disk",
        minimum=0.005,
        maximum=0.1,
    ),
    Key(
        "watcher.sync_interval",
        DURATION,
        1.0,
        "seconds",
        "between two fdatasync calls: what a power loss can cost",
        minimum=0.0,
        maximum=3600.0,
    ),
    Key(
        "watcher.heartbeat_interval",
        DURATION,
        2.0,
        "seconds",
        "between two heartbeats; readers call a run lost after 30 s without one",
        minimum=0.1,
        maximum=10.0,
    ),
    Key(
        "watcher.analysis.anomaly",
        SWITCH,
        True,
        "",
        "tell values that a metric of your own has never had: the rule `anomaly`",
    ),
    Key(
        "watcher.analysis.trend",
        SWITCH,
        True,
        "",
        "tell where trends lead: the rules `loss_plateau`, `memory_leak`, `gpu_memory_leak` and `disk_filling`",
    ),
    Key(
        "watcher.analysis.regression",
        SWITCH,
        True,
        "",
        "tell when training has become slower than it was: the rule `training_speed`",
    ),
    Key("watcher.batch", SWITCH, True, "", "rows always travel in batches; false makes the batches smaller"),
    Key(
        "watcher.stacks", SWITCH, True, "", "take the stacks of a training that stands still (one handler of a signal)"
    ),
    Key(
        "watcher.stall_after",
        DURATION,
        10.0,
        "seconds",
        "without a step, at least, before a training counts as stalled; 5 median steps or 2 longest pauses if more",
        minimum=1.0,
    ),
    Key(
        "watcher.hang_after",
        DURATION,
        300.0,
        "seconds",
        "of a stall after which it counts as a hang, whatever else moves",
        minimum=5.0,
    ),
    Key("store.dir", PATH, "stepscope-runs", "", "folder that holds the runs"),
    Key(
        "store.seal_bytes",
        SIZE,
        4 * MIB,
        "bytes",
        "size of the tail at which it is sealed into Parquet",
        minimum=64 << 10,
        maximum=1 << 30,
    ),
    Key(
        "store.seal_interval",
        DURATION,
        300.0,
        "seconds",
        "age of the tail at which it is sealed into Parquet",
        minimum=1.0,
    ),
    Key("store.max_size_gb", GIBIBYTES, 0.0, "GiB", "size of all runs beyond which the oldest go; 0: no limit"),
    Key("store.max_age_days", FLOAT, 0.0, "days", "age beyond which a run goes; 0: no limit", minimum=0.0),
    Key("store.max_runs", INTEGER, 0, "runs", "number of runs beyond which the oldest go; 0: no limit", minimum=0),
    Key("store.auto_cleanup", SWITCH, False, "", "apply these limits when a run ends; false: only by `stepscope gc`"),
)

SAMPLERS = (
    Key("samplers.enabled", SWITCH, True, "", "sample the machine"),
    Key("samplers.interval", DURATION, 1.0, "seconds", "between two samples", minimum=0.1, maximum=3600.0),
    Key("samplers.gpu", SWITCH, True, "", "sample GPUs"),
    Key("samplers.all_gpus", SWITCH, False, "", "also those that CUDA_VISIBLE_DEVICES hides from the training"),
    Key("samplers.cpu", SWITCH, True, "", "sample processors, memory, temperature and power"),
    Key("samplers.io", SWITCH, True, "", "sample disks and network"),
    Key("samplers.processes", SWITCH, True, "", "sample the training's processes and their workers"),
    Key(
        "samplers.budget",
        FRACTION,
        0.005,
        "fraction",
        "of one processor that one source may take; beyond it is asked more rarely",
        minimum=0.0,
        maximum=1.0,
    ),
    *(
        Key(
            f"samplers.intervals.{group}",
            DURATION,
            0.0,
            "seconds",
            f"between two samples of {what}; 0: as samplers.interval",
            maximum=3600.0,
        )
        for group, what in (
            ("gpu", "GPUs"),
            ("cpu", "processors, memory, temperature and power"),
            ("io", "disks and network"),
            ("processes", "the training's processes"),
        )
    ),
    *(
        Key(
            f"samplers.phases.{phase}",
            DURATION,
            0.0,
            "seconds",
            f"between two samples while the phase {phase} lasts; 0: as otherwise",
            maximum=3600.0,
        )
        for phase in ("evaluation", "checkpoint", "compile")
    ),
)

PROMETHEUS = (
    Key("exporters.prometheus.enabled", SWITCH, False, "", "serve metrics to Prometheus while the run goes on"),
    Key("exporters.prometheus.host", TEXT, "127.0.0.1", "", "address to listen on; another one needs a token"),
    Key(
        "exporters.prometheus.token",
        SWITCH,
        False,
        "",
        "ask for the token on this machine too: without it all its users can read the metrics",
    ),
    Key(
        "exporters.prometheus.port",
        INTEGER,
        8000,
        "",
        "port to listen on; the next free one if it is taken, any for 0",
        minimum=0,
        maximum=65535,
    ),
    Key(
        "exporters.prometheus.targets",
        TEXT,
        "",
        "",
        "folder for the file that tells Prometheus the port (file_sd); empty: the run's folder",
    ),
    Key(
        "exporters.prometheus.max_series",
        INTEGER,
        2000,
        "series",
        "served at most; the excess is dropped and counted",
        minimum=1,
    ),
)

TENSORBOARD = (
    Key("exporters.tensorboard.enabled", SWITCH, False, "", "write TensorBoard event files while the run goes on"),
    Key("exporters.tensorboard.dir", TEXT, "", "", "folder of the event files, one a run in it; empty: tensorboard"),
    Key("exporters.grafana.enabled", SWITCH, False, "", "write a Grafana dashboard of the run when it begins"),
    Key("exporters.grafana.path", TEXT, "", "", "file of the dashboard; empty: grafana.json in the run's folder"),
)

LEDGER = (
    Key("ledger.price", TEXT, "", "", "of one GPU and hour: 2.5, 2.5 EUR, H100 or aws/H100; empty: no money is told"),
    Key("ledger.prices", TEXT, "", "", "file with prices and regions; empty: the one that comes with Stepscope"),
    Key("ledger.region", TEXT, "world", "", "where the electricity comes from: a country of the file, for its CO₂"),
)

WATCH = (
    Key("recorder.watch.gradients", SWITCH, True, "", "record the norm of the gradients of a watched model"),
    Key("recorder.watch.parameters", SWITCH, False, "", "histograms of parameters and gradients every 1 000 steps"),
    Key("recorder.watch.layers", TEXTS, (), "", "parts of the names of layers whose gradients are tracked one by one"),
    Key("recorder.watch.modules", TEXTS, (), "", "parts of the names of modules whose activations are measured"),
    Key("recorder.watch.memory", SWITCH, True, "", "record memory of the process and of torch's allocator"),
    Key("recorder.watch.flops", SWITCH, False, "", "count the FLOPs of one step, and record the MFU of the others"),
)


ALERTING = (
    Key("alerting.enabled", SWITCH, True, "", "evaluate alert rules in the watcher"),
    Key("alerting.profile", TEXT, "default", "", "set of rules to start from; `stepscope alerts rules` lists them"),
    Key("alerting.rules", LIST, (), "", "your own rules, and changes to built-in rules: see docs/reference/alerts.md"),
    Key(
        "alerting.channels",
        LIST,
        (),
        "",
        "whom to tell: apprise URLs, web addresses, or mappings (url, name, secret, severity, quiet_hours)",
        secret=True,
    ),
    Key("alerting.email", SWITCH, True, "", "send to the mail channels"),
    Key("alerting.slack", SWITCH, True, "", "send to the Slack channels"),
    Key("alerting.resolved", SWITCH, True, "", "tell when an alert is over, too"),
    Key("alerting.quiet_hours", TEXT, "", "", "in which only critical alerts are told: 22:00-07:00 Europe/Berlin"),
    Key("alerting.page_url", TEXT, "", "", "address of the page, for the link in messages; no other link is in them"),
    Key(
        "alerting.private_addresses",
        SWITCH,
        False,
        "",
        "let any name lead to private networks; servers that alerting.channels names may always",
    ),
    Key("alerting.commands", LIST, (), "", "programs that rules may start by name: mappings (name, command, seconds)"),
    Key("alerting.gpu_underutilization", SWITCH, True, "", "alert when GPUs idle"),
    Key("alerting.memory_pressure", SWITCH, True, "", "alert when memory runs out"),
    Key("alerting.io_bottleneck", SWITCH, True, "", "alert when the training waits for disks"),
    *(one.key for one in thresholds.TABLE),
)


WEB = (
    Key("web.enabled", SWITCH, False, "", "serve the page while the run goes on, as `init(dashboard=True)` does"),
    Key("web.host", TEXT, "127.0.0.1", "", "address to listen on; the page asks for its token on any"),
    Key("web.port", INTEGER, 8080, "", "port to listen on; 0: any free one", minimum=0, maximum=65535),
    Key("web.refresh_interval", DURATION, 0.5, "seconds", "between two updates of the page", minimum=0.1),
    Key("web.metrics", TEXTS, (), "", "metrics shown first; all are recorded"),
)


def planned(path: str, kind: Kind, default: object, text: str, unit: str = "") -> Key:
    """Return a key of a part that is not built yet."""
    return Key(path, kind, default, unit, text, status="planned")


PLANNED = (
    planned("exporters.csv.enabled", SWITCH, False, "write the machine's samples as CSV, a file per epoch"),
    planned("exporters.csv.dir", PATH, "resource_logs", "folder of the CSV files"),
    planned("callbacks.throughput_monitor.enabled", SWITCH, True, "false makes the callback a no-op"),
    planned("callbacks.throughput_monitor.log_interval", INTEGER, 1, "between two console lines", "epochs"),
    planned("callbacks.throughput_monitor.track_memory", SWITCH, True, "report memory"),
    planned("callbacks.throughput_monitor.track_timing", SWITCH, True, "report batch times"),
    planned("callbacks.profiler.enabled", SWITCH, False, "profiling costs time: off unless asked for"),
    planned("callbacks.profiler.profile_epochs", INTEGERS, (1, 5, 10), "epochs to profile"),
    planned("callbacks.profiler.profile_steps", INTEGER, 100, "profiled in each of these epochs", "steps"),
    planned("callbacks.profiler.warmup_steps", INTEGER, 5, "before profiling starts", "steps"),
    planned("callbacks.profiler.activities", TEXTS, ("cpu", "cuda"), "what to profile; absent devices are skipped"),
    planned("callbacks.profiler.record_shapes", SWITCH, True, "record the shapes of tensors"),
    planned("callbacks.profiler.with_stack", SWITCH, False, "record stacks: slower, more detail"),
    planned("callbacks.profiler.output_dir", PATH, "profiler_traces", "folder of the traces"),
    planned("callbacks.profiler.export_chrome_trace", SWITCH, True, "write Chrome traces"),
    planned("callbacks.profiler.log_top_k_ops", INTEGER, 15, "slowest to print", "operations"),
    planned("callbacks.resource_monitor.enabled", SWITCH, True, "false makes the callback a no-op"),
    planned("callbacks.resource_monitor.log_interval", INTEGER, 10, "between two console lines", "batches"),
)

IMPLICATIONS = (
    Implication(
        "recorder.high_frequency",
        bool,
        {"recorder.ring_bytes": 8 * MIB, "watcher.drain_interval": 0.05},
        "when true",
    ),
    Implication("watcher.batch", lambda value: not value, {"watcher.drain_interval": 0.02}, "when false"),
    Implication("recorder.distributed", lambda value: not value, {"recorder.track_rank_0_only": True}, "when false"),
    Implication("exporters.tensorboard.dir", bool, {"exporters.tensorboard.enabled": True}, "when set"),
    Implication("exporters.grafana.path", bool, {"exporters.grafana.enabled": True}, "when set"),
    Implication("exporters.grafana.enabled", bool, {"exporters.prometheus.enabled": True}, "when true"),
    Implication(
        "web.metrics",
        lambda value: isinstance(value, tuple) and "gradient_norms" in value,
        {"recorder.watch.gradients": True},
        "when it lists `gradient_norms`",
    ),
    Implication(
        "web.metrics",
        lambda value: isinstance(value, tuple) and "model_parameters" in value,
        {"recorder.watch.parameters": True},
        "when it lists `model_parameters`",
    ),
)


def default_schema() -> Schema:
    """Return a new schema with everything this version knows."""
    schema = Schema()
    built = ("recorder", "samplers", "watcher", "store", "alerting", "ledger", "web")
    for section in built:
        keys = (*BUILT, *WATCH, *SAMPLERS, *ALERTING, *LEDGER, *WEB)
        schema.register(section, [key for key in keys if key.path.startswith(f"{section}.")])
    schema.plan((*PROMETHEUS, *TENSORBOARD))
    schema.plan(PLANNED, open_sections=set(SECTIONS) - {*built, "callbacks"})
    schema.free("targets", MEASURE)
    schema.alias(*ALIASES)
    schema.imply(*IMPLICATIONS)
    return schema
