"""Nothing in the configuration is accepted and ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.alerts.rules.profiles import RESOURCE_RULES
from stepscope.core.settings import IMPLICATIONS, KEYS, PATHS
from stepscope.session.opening import WATCHED
from stepscope.watcher.sampling import GROUPS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "stepscope"
TABLES = {"settings.py", "spellings.py", "defaults.py", "thresholds.py"}
READ_BY_NAME = (
    ("store.", "store/retention.py", "max_runs max_age_days max_size_gb"),
    ("exporters.prometheus.", "exporters/prometheus/feed.py", "host token port targets max_series"),
    ("recorder.watch.", "session/opening.py", " ".join(WATCHED)),
    ("samplers.", "watcher/sampling.py", " ".join({*GROUPS.values(), "cpu"})),
    ("alerting.", "alerts/rules/profiles.py", " ".join(RESOURCE_RULES)),
    ("alerting.", "alerts/delivery/channel.py", "slack"),
)
"""Keys whose path a module puts together: the section, the module, and the names that it puts behind the section."""
READ_WHOLE = {
    "samplers.intervals.": ("watcher/sampling.py", '_below("samplers.intervals."'),
    "samplers.phases.": ("watcher/sampling.py", '_below("samplers.phases."'),
    "alerting.thresholds.": ("alerts/rules/profiles.py", "path.startswith(prefix)"),
    "callbacks.": ("integrations/lightning/callback.py", 'config.options(f"callbacks.{group}")'),
    "exporters.csv.": ("integrations/lightning/callback.py", 'config.options(f"callbacks.{group}")'),
}
"""Sections that a module reads whole, and the code that does so."""


def is_read(path: str, code: str) -> bool:
    """Tell whether the code reads a setting."""
    if f'"{path}"' in code or path in {rule.path for rule in IMPLICATIONS}:
        return True
    for prefix, module, names in READ_BY_NAME:
        name = path.removeprefix(prefix)
        if name != path and name in names.split() and name in (SOURCE / module).read_text():
            return True
    return any(
        path.startswith(prefix) and reading in (SOURCE / module).read_text()
        for prefix, (module, reading) in READ_WHOLE.items()
    )


def test_every_setting_is_read():
    """Each key is named by the code that reads it, or lies in a section that a module reads."""
    code = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name not in TABLES)
    assert [path for path in KEYS if not is_read(path, code)] == []


def test_a_key_that_nothing_reads_is_found():
    """The check can fail."""
    assert not is_read("store.colour", "")


@pytest.mark.slow
@pytest.mark.parametrize("group", ["throughput_monitor", "profiler", "resource_monitor"])
def test_every_option_of_a_callback_is_one_of_its_parameters(group):
    """The configuration knows no option that the callback would not take."""
    pytest.importorskip("lightning")
    import inspect

    from stepscope import callbacks
    from stepscope.core.spellings import CALLBACKS

    [name] = [name for name, of in CALLBACKS.items() if of == group]
    parameters = inspect.signature(getattr(callbacks, name)).parameters
    options = [path.rpartition(".")[2] for path in PATHS if path.startswith(f"callbacks.{group}.")]
    assert set(options) <= set(parameters)
