from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepscope.core.vocabulary import BY_NAME
from stepscope.samplers.machine import host_samplers
from stepscope.samplers.nvidia_metrics import METRICS
from tests.samplers.machines import SECOND, amd, cgroup_v2, host, hwmon, process, rapl, stat_text, write


def whole_machine(root):
    """Make a machine that has everything."""
    for build in (host, cgroup_v2, rapl, hwmon, amd):
        build(root)
    return process(root, 100, children="")


def matches(name, patterns):
    return any(re.fullmatch(re.escape(pattern).replace(r"\*", "[^/]+"), name) for pattern in patterns)


@pytest.mark.promise("S1-008")
@pytest.mark.parametrize("real", [True, False])
def test_every_value_is_declared(tmp_path, real):
    """Each value that a sampler tells, on this machine and on one that has everything, is among its metrics."""
    root = Path("/") if real else whole_machine(tmp_path)
    for sampler in host_samplers(root, tmp_path, lambda: {0: os.getpid() if real else 100}):
        sampler.sample(0)
        if not real:
            write(root, {"proc/stat": stat_text(4, busy=150, idle=350)})
        values = sampler.sample(SECOND)
        patterns = [metric.name for metric in sampler.metrics]
        assert [name for name in values if not matches(name, patterns)] == []
        assert all(isinstance(value, float) for value in values.values())


def test_names_are_told_once():
    """No two samplers of one machine declare the same metric, and every metric has a help text."""
    declared = [metric for sampler in host_samplers(Path("/"), Path(), dict) for metric in sampler.metrics]
    names = [metric.name for metric in declared]
    assert sorted(names) == sorted(set(names))
    assert all(metric.help.endswith(".") for metric in declared)


def test_units_stand_in_the_names():
    """A name that ends with a unit has that unit."""
    endings = {"bytes": "bytes", "ratio": "ratio", "celsius": "celsius", "watts": "watts", "hertz": "hertz"}
    endings |= {"bytes_per_second": "bytes/second"}
    for sampler in host_samplers(Path("/"), Path(), dict):
        for name, unit, _, _ in sampler.metrics:
            expected = [want for ending, want in endings.items() if re.search(f"[/_]{ending}$", name)]
            assert not expected or unit in expected, name


def test_empty_machine(tmp_path):
    """Where nothing is to be found, every sampler either fails with OSError or tells nothing, and says why."""
    for sampler in host_samplers(tmp_path, tmp_path / "gone", dict):
        try:
            assert sampler.sample(0) == {}, sampler.name
        except OSError:
            assert sampler.absent()
        assert all("; " in reason for reason in sampler.absent().values())


def test_loads_nothing_heavy():
    """The samplers load no module that does not come with Python: the watcher stays small."""
    program = "import sys, stepscope.samplers.machine; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    foreign = set(done.stdout.split()) - set(sys.stdlib_module_names) - {"stepscope", "__main__"}
    assert {name for name in foreign if not name.startswith("_")} == set()


@pytest.mark.slow
def test_runs_long_without_leaking_files(tmp_path, open_files):
    """Two hundred samples leave as many files open as two do."""
    samplers = host_samplers(Path("/"), tmp_path, lambda: {0: os.getpid()})
    counts = []
    for at in range(200):
        for sampler in samplers:
            sampler.sample(time.monotonic_ns() + at * SECOND)
        counts.append(len(open_files()))
    assert counts[-1] <= counts[1]


def test_a_metric_is_described_once():
    """A sampler takes a metric that the vocabulary has from there."""
    samplers = host_samplers(Path("/"), Path("/"), dict)
    shared = [metric for sampler in samplers for metric in sampler.metrics if metric.name in BY_NAME]
    assert len(shared) > 5
    assert all(BY_NAME[metric.name] is metric for metric in [*shared, *(m for m in METRICS if m.name in BY_NAME)])
