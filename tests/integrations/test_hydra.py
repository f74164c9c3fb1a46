from __future__ import annotations

import inspect

import pytest

pytest.importorskip("hydra")
pytest.importorskip("lightning")
import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import stepscope.callbacks as face
from tests.integrations.programs import ROOT, last_run, other_share, run_program

# Lightning warns about its own dependencies.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.processes, pytest.mark.training]
GROUP = ROOT / "configs" / "callbacks"
CLASSES = {
    "throughput_monitor": "ThroughputMonitorCallback",
    "profiler": "ProfilerCallback",
    "resource_monitor": "ResourceMonitorCallback",
}


def compose(*overrides):
    """Return the example's configuration with these overrides, by Hydra itself."""
    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return hydra.compose("lightning_example", overrides=list(overrides))


@pytest.mark.promise("S3-004")
def test_group_has_a_file_for_each_callback():
    """`configs/callbacks/` has the documents' three files."""
    assert sorted(path.stem for path in GROUP.glob("*.yaml")) == sorted(CLASSES)


@pytest.mark.parametrize("name", sorted(CLASSES))
@pytest.mark.promise("S3-002")
def test_file_says_the_defaults_of_its_class(name):
    """A file names its class by `_target_`, and every value in it is the class's own default."""
    values = OmegaConf.to_container(compose(f"callbacks=[{name}]").callbacks[name])
    assert values.pop("_target_") == f"stepscope.callbacks.{CLASSES[name]}"
    parameters = inspect.signature(getattr(face, CLASSES[name])).parameters
    assert values == {key: _listed(parameters[key].default) for key in values}


def _listed(value):
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.promise("S3-003")
def test_overrides_of_the_documents_work():
    """Groups by a list, switches, numbers and lists: as the documents write them, on a command line."""
    line = [
        "callbacks=throughput_monitor,profiler,resource_monitor",
        "callbacks.throughput_monitor.enabled=false",
        "callbacks.throughput_monitor.log_interval=2",
        "callbacks.profiler.enabled=true",
        "callbacks.profiler.profile_epochs=[1,5]",
        "callbacks.profiler.profile_steps=50",
        "callbacks.resource_monitor.log_interval=20",
        "project_name=OCR_Training",
    ]
    config = compose(*face.hydra_arguments(line))
    made = hydra.utils.instantiate(config.callbacks)
    assert list(made) == ["throughput_monitor", "profiler", "resource_monitor"]
    assert (made.throughput_monitor.enabled, made.throughput_monitor.log_interval) == (False, 2)
    assert (made.profiler.enabled, made.profiler.profile_epochs, made.profiler.options["steps"]) == (True, [1, 5], 50)
    assert made.resource_monitor.log_interval == 20


def test_only_sweeps_of_the_group_are_rewritten():
    """A list stays as it is, other keys too; what comes out is one value to Hydra."""
    words = ["callbacks=a,b", "callbacks=[a,b]", "callbacks=a", "optimizer=a,b", "callbacks.a.x=1,2", "--multirun"]
    rewritten = face.hydra_arguments(words)
    assert rewritten == ["callbacks=[a,b]", *words[1:]]
    [override] = OverridesParser.create().parse_overrides(rewritten[:1])
    assert not override.is_sweep_override()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.promise("S3-003", "S3-047")
def test_combined_usage_runs(tmp_path):
    """The example with all three callbacks, enabled on the command line, prints their lines and writes their files."""
    printed = run_program(
        "examples/lightning_example.py",
        "callbacks=throughput_monitor,profiler,resource_monitor",
        *("callbacks.throughput_monitor.enabled=true", "callbacks.profiler.enabled=true"),
        *("callbacks.profiler.profile_epochs=[1]", "callbacks.profiler.profile_steps=5"),
        *("callbacks.resource_monitor.enabled=true", "callbacks.resource_monitor.log_interval=1"),
        "exp_name=comprehensive_monitoring",
        folder=tmp_path,
    )
    assert "finished: 30 steps, 15000 samples" in printed
    for begin in ("ThroughputMonitor: Epoch 2 - ", "ThroughputMonitor: Batch timing - ", "Profiler: Top "):
        assert begin in printed
    assert (tmp_path / "profiler_traces" / "chrome_trace_epoch_1.json").exists()
    assert (tmp_path / "resource_logs" / "epoch_0.csv").exists()
    past = last_run()
    assert past.state == "finished"
    assert other_share(past) <= 0.05
