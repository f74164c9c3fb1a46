"""The settings of Stepscope: every key, their compatible spellings, and implied defaults.

Every key here is read somewhere (tests/core/test_settings_used.py).
"""

# ruff: noqa: FBT003 - a table, where true and false are defaults

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.core import kinds, thresholds
from stepscope.core.kinds import DURATION, FLOAT, FRACTION, INTEGER, LIST, MIB, PATH, SIZE, SWITCH, TEXT, TEXTS, Key
from stepscope.core.spellings import ALIASES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SECTIONS: Mapping[str, str] = {
    "recorder": "what the training process records, and how much memory it uses for it",
    "samplers": "what is sampled on the machine",
    "watcher": "the watcher process that runs next to the training",
    "store": "the runs on disk",
    "alerting": "which alerts fire, and who is notified",
    "exporters": "other tools that receive the metrics",
    "web": "the web page",
    "callbacks": "options of the Lightning callbacks",
    "ledger": "what a run costs: prices and energy",
    "targets": "target values to compare a run with: metric name and number",
}
"""Every section, in the order of the documentation."""
FREE_SECTIONS = {"targets": kinds.MEASURE}
"""Sections whose keys users name, such as metrics, with the kind of their values."""

SESSION = (
    Key("recorder.enabled", SWITCH, True, "record anything; false turns every call into a no-op"),
    Key("recorder.ring_bytes", SIZE, 4 * MIB, "shared memory per rank for rows not yet on disk", MIB // 4, 64 * MIB),
    Key("recorder.spill_bytes", SIZE, 128 * MIB, "extra space per rank if bursts fill the ring; 0: none", 0, kinds.GIB),
    Key("recorder.memory_map", SWITCH, True, "keep the ring in shared memory; false: in a reserved file on local disk"),
    Key("recorder.high_frequency", SWITCH, False, "for over 100 steps per second: a larger ring, drained more often"),
    Key("recorder.distributed", SWITCH, True, "record every rank; false: only rank 0"),
    Key("recorder.track_rank_0_only", SWITCH, False, "record nothing on ranks other than 0"),
    Key(
        "recorder.max_names",
        INTEGER.of("names"),
        200_000,
        "distinct metric names per rank; rows with further names are refused and counted",
        minimum=1,
    ),
    Key(
        "recorder.max_events_per_second",
        INTEGER.of("events/s"),
        1000,
        "texts and mappings logged as events; any above this rate are dropped and counted",
        minimum=0,
    ),
    Key("recorder.device_values", SWITCH, True, "record device scalars without waiting; false: skip and count them"),
    Key(
        "recorder.overhead_budget",
        FRACTION,
        0.01,
        "share of a step that framework hooks may cost; above it, only every n-th step is measured",
    ),
    Key(
        "recorder.catch",
        kinds.AUTO_SWITCH,
        kinds.AUTO,
        "record what the script logs to other trackers; auto: under `stepscope run` and after `run.watch()`",
    ),
    Key(
        "recorder.console",
        kinds.AUTO_SWITCH,
        kinds.AUTO,
        "keep what each rank prints; auto: under `stepscope run`",
    ),
    Key("watcher.drain_interval", DURATION, 0.1, "interval at which rows are moved from the rings to disk", 0.005, 0.1),
    Key("watcher.sync_interval", DURATION, 1.0, "fdatasync interval: the most that a power loss can cost", 0, 3600),
    Key("watcher.heartbeat_interval", DURATION, 2.0, "heartbeat interval; a run without one for 30 s is lost", 0.1, 10),
    Key("watcher.analysis.anomaly", SWITCH, True, "detect values that a metric has never had: the rule `anomaly`"),
    Key(
        "watcher.analysis.trend",
        SWITCH,
        True,
        "detect trends: the rules `loss_plateau`, `memory_leak`, `gpu_memory_leak` and `disk_filling`",
    ),
    Key("watcher.analysis.regression", SWITCH, True, "detect when training becomes slower: the rule `training_speed`"),
    Key("watcher.batch", SWITCH, True, "move rows in large batches; false: smaller batches, more often"),
    Key(
        "watcher.stacks",
        SWITCH,
        True,
        "collect stacks of a training that hangs (takes a signal handler and a thread)",
    ),
    Key(
        "watcher.stall_after",
        DURATION,
        10.0,
        "shortest time without a step that counts as a stall; 5 median steps or 2 longest pauses if those are longer",
        minimum=1.0,
    ),
    Key("watcher.hang_after", DURATION, 300.0, "a stall this long is a hang, even if the process is active", 5.0),
    Key("store.dir", PATH, "stepscope-runs", "folder that holds the runs"),
    Key("store.seal_bytes", SIZE, 4 * MIB, "size of the tail at which it is sealed into Parquet", 64 << 10, kinds.GIB),
    Key("store.seal_interval", DURATION, 300.0, "age of the tail at which it is sealed into Parquet", 1.0),
    Key(
        "store.console_bytes",
        SIZE,
        32 * MIB,
        "most bytes of a rank's console that are kept: its start and its newest lines",
        2 * MIB,
        64 * kinds.GIB,
    ),
    Key("store.max_size_gb", kinds.GIBIBYTES, 0.0, "size of all runs above which the oldest are deleted; 0: no limit"),
    Key("store.max_age_days", FLOAT.of("days"), 0.0, "age above which a run is deleted; 0: no limit", 0.0),
    Key("store.max_runs", INTEGER.of("runs"), 0, "number of runs above which the oldest are deleted; 0: no limit", 0),
    Key("store.auto_cleanup", SWITCH, False, "apply these limits when a run ends; false: only with `stepscope gc`"),
    Key("recorder.watch.gradients", SWITCH, True, "record the gradient norm of a watched model"),
    Key("recorder.watch.parameters", SWITCH, False, "record histograms of parameters and gradients every 1 000 steps"),
    Key("recorder.watch.layers", TEXTS, (), "layers whose gradients are tracked separately: substrings of their names"),
    Key("recorder.watch.modules", TEXTS, (), "modules whose activations are measured: substrings of their names"),
    Key("recorder.watch.memory", SWITCH, True, "record memory of the process and of the torch allocator"),
    Key("recorder.watch.flops", SWITCH, False, "count the FLOPs of one step, and record the MFU of the other steps"),
    Key("samplers.enabled", SWITCH, True, "sample the machine"),
    Key("samplers.interval", DURATION, 1.0, "sampling interval", 0.1, 3600),
    Key("samplers.gpu", SWITCH, True, "sample GPUs"),
    Key("samplers.all_gpus", SWITCH, False, "also sample GPUs that CUDA_VISIBLE_DEVICES hides from the training"),
    Key("samplers.cpu", SWITCH, True, "sample CPUs, memory, temperature and power"),
    Key("samplers.io", SWITCH, True, "sample disks and network"),
    Key("samplers.processes", SWITCH, True, "sample the training's processes and their workers"),
    Key("samplers.budget", FRACTION, 0.005, "share of one CPU for a source; above it, the source is read less often"),
    *(
        Key(f"samplers.intervals.{group}", DURATION, 0.0, f"sampling interval of {what}; 0: samplers.interval", 0, 3600)
        for group, what in (
            ("gpu", "GPUs"),
            ("cpu", "CPUs, memory, temperature and power"),
            ("io", "disks and network"),
            ("processes", "the training's processes"),
        )
    ),
    *(
        Key(f"samplers.phases.{phase}", DURATION, 0.0, f"sampling interval during {phase}; 0: no change", 0, 3600)
        for phase in ("evaluation", "checkpoint", "compile")
    ),
    Key("exporters.prometheus.enabled", SWITCH, False, "serve metrics to Prometheus during the run"),
    Key("exporters.prometheus.host", TEXT, "127.0.0.1", "address to listen on; all but loopback require a token"),
    Key("exporters.prometheus.token", SWITCH, False, "require the token on loopback too: all local users can connect"),
    Key("exporters.prometheus.port", INTEGER, 8000, "port to listen on, or the next free; 0: any free port", 0, 65535),
    Key("exporters.prometheus.targets", TEXT, "", "folder of the file_sd file for Prometheus; empty: the run's folder"),
    Key(
        "exporters.prometheus.max_series",
        INTEGER.of("series"),
        2000,
        "most series to serve; further series are dropped and counted",
        minimum=1,
    ),
    Key("exporters.tensorboard.enabled", SWITCH, False, "write TensorBoard event files during the run"),
    Key("exporters.tensorboard.dir", TEXT, "", "folder of the event files, a subfolder per run; empty: tensorboard"),
    Key("exporters.grafana.enabled", SWITCH, False, "write a Grafana dashboard when the run starts"),
    Key("exporters.grafana.path", TEXT, "", "file of the dashboard; empty: grafana.json in the run's folder"),
    Key("web.enabled", SWITCH, False, "serve the web page during the run, like `init(dashboard=True)`"),
    Key("web.host", TEXT, "127.0.0.1", "address to listen on; the page always requires its token"),
    Key("web.port", INTEGER, 8080, "port to listen on; 0: any free port", 0, 65535),
    Key("web.refresh_interval", DURATION, 0.5, "refresh interval of the page", 0.1),
    Key("web.metrics", TEXTS, (), "metrics to show first; all metrics are recorded"),
)
"""The settings that a session reads; `core.defaults` repeats their defaults."""

OTHERS = (
    Key("alerting.enabled", SWITCH, True, "evaluate alert rules in the watcher"),
    Key("alerting.profile", TEXT, "default", "set of rules to start from; `stepscope alerts rules` lists them"),
    Key("alerting.rules", LIST, (), "your own rules, and changes to built-in rules: see docs/reference/alerts.md"),
    Key(
        "alerting.channels",
        LIST,
        (),
        "where to send alerts: apprise URLs, web addresses, or mappings (url, name, secret, severity, quiet_hours)",
        secret=True,
    ),
    Key("alerting.email", SWITCH, True, "send to the mail channels"),
    Key("alerting.slack", SWITCH, True, "send to the Slack channels"),
    Key("alerting.resolved", SWITCH, True, "also notify when an alert is resolved"),
    Key("alerting.quiet_hours", TEXT, "", "hours in which only critical alerts are sent: 22:00-07:00 Europe/Berlin"),
    Key("alerting.page_url", TEXT, "", "URL of the web page for the link in messages, which contain no other link"),
    Key(
        "alerting.private_addresses",
        SWITCH,
        False,
        "allow any host name to resolve to a private network; servers listed in alerting.channels always may",
    ),
    Key("alerting.commands", LIST, (), "programs that rules may run by name: mappings (name, command, seconds)"),
    Key("alerting.gpu_underutilization", SWITCH, True, "alert when GPUs are idle"),
    Key("alerting.memory_pressure", SWITCH, True, "alert when memory runs out"),
    Key("alerting.io_bottleneck", SWITCH, True, "alert when the training waits for disks"),
    *thresholds.BY_NAME.values(),
    Key("ledger.price", TEXT, "", "price per GPU hour: 2.5, 2.5 EUR, H100 or aws/H100; empty: costs are hidden"),
    Key("ledger.prices", TEXT, "", "file with prices and regions; empty: the file included in Stepscope"),
    Key("ledger.region", TEXT, "world", "country of the electricity, as in the prices file, for its CO₂ intensity"),
    Key(
        "exporters.sinks",
        LIST,
        (),
        "other tools that get a copy of the run: addresses, or mappings (url, name, metrics, prefix, interval)",
        secret=True,
    ),
    Key("exporters.csv.enabled", SWITCH, True, "let ResourceMonitorCallback write its samples as CSV, one per epoch"),
    Key("exporters.csv.dir", PATH, "resource_logs", "folder of these CSV files"),
    Key("callbacks.throughput_monitor.enabled", SWITCH, True, "false turns the callback into a no-op"),
    Key("callbacks.throughput_monitor.log_interval", INTEGER.of("epochs"), 1, "interval of reports on the console"),
    Key("callbacks.throughput_monitor.track_memory", SWITCH, True, "report memory"),
    Key("callbacks.throughput_monitor.track_timing", SWITCH, True, "report batch times"),
    Key("callbacks.profiler.enabled", SWITCH, False, "run the profiler; off by default because it slows training down"),
    Key("callbacks.profiler.profile_epochs", kinds.INTEGERS, (1, 5, 10), "epochs to profile"),
    Key("callbacks.profiler.profile_steps", INTEGER.of("steps"), 100, "steps to profile in each of these epochs"),
    Key("callbacks.profiler.warmup_steps", INTEGER.of("steps"), 5, "warm-up steps before profiling starts"),
    Key("callbacks.profiler.activities", TEXTS, ("cpu", "cuda"), "devices to profile; missing devices are skipped"),
    Key("callbacks.profiler.record_shapes", SWITCH, True, "record the shapes of tensors"),
    Key("callbacks.profiler.with_stack", SWITCH, False, "record stacks: slower, but more detail"),
    Key("callbacks.profiler.output_dir", PATH, "profiler_traces", "folder of the traces"),
    Key("callbacks.profiler.export_chrome_trace", SWITCH, True, "write Chrome traces"),
    Key("callbacks.profiler.log_top_k_ops", INTEGER.of("operations"), 15, "slowest operations to print"),
    Key("callbacks.resource_monitor.enabled", SWITCH, True, "false turns the callback into a no-op"),
    Key("callbacks.resource_monitor.log_interval", INTEGER.of("batches"), 10, "interval of reports on the console"),
)
"""The settings of alerts, costs, sinks and callbacks."""

KEYS = {key.path: key for key in (*SESSION, *OTHERS)}
PATHS = (*KEYS, *ALIASES)
"""Every path that can be set, in all spellings."""


class Implication(NamedTuple):
    """A setting that, when set, changes the defaults of others; explicit settings stay unchanged."""

    path: str
    holds: Callable[[object], bool]
    implied: Mapping[str, object]
    note: str


def _lists(metric: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and metric in value


IMPLICATIONS = (
    Implication(
        "recorder.high_frequency", bool, {"recorder.ring_bytes": 8 * MIB, "watcher.drain_interval": 0.05}, "when true"
    ),
    Implication("watcher.batch", lambda value: not value, {"watcher.drain_interval": 0.02}, "when false"),
    Implication("recorder.distributed", lambda value: not value, {"recorder.track_rank_0_only": True}, "when false"),
    Implication("exporters.tensorboard.dir", bool, {"exporters.tensorboard.enabled": True}, "when set"),
    Implication("exporters.grafana.path", bool, {"exporters.grafana.enabled": True}, "when set"),
    Implication("exporters.grafana.enabled", bool, {"exporters.prometheus.enabled": True}, "when true"),
    *(
        Implication("web.metrics", _lists(metric), {f"recorder.watch.{watched}": True}, f"when it lists `{metric}`")
        for metric, watched in (("gradient_norms", "gradients"), ("model_parameters", "parameters"))
    ),
)
"""Later ones win over earlier ones."""


def kind_of(path: str) -> kinds.ValueKind | Key | None:
    """Return what parses the value at a path; None if there is no such setting."""
    section, _, name = path.partition(".")
    return KEYS.get(path) or (FREE_SECTIONS.get(section) if all(name.split(".")) else None)
