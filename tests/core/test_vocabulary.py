from __future__ import annotations

import re

import pytest

from stepscope.core.numbers import format_value
from stepscope.core.vocabulary import (
    ALIASES,
    BY_NAME,
    METRICS,
    MIB,
    aliases,
    by_canonical,
    canonical,
    metric_of,
    spellings,
    unit_of,
)


def test_names_are_unique():
    """No name stands twice, no alias is a canonical name, and each leads to one that exists."""
    names = [metric.name for metric in METRICS] + [alias.name for alias in ALIASES]
    assert len(names) == len(set(names))
    assert all(alias.canonical in BY_NAME for alias in ALIASES)


def test_form():
    """Names are lower-case with base units, helps are sentences, kinds are the three."""
    for metric in METRICS:
        assert re.fullmatch(r"[a-z_*]+(/[a-z_*]+){0,3}", metric.name)
        assert metric.help.endswith(".")
        assert metric.kind in {"gauge", "counter", "duration"}
        counts = metric.name.endswith(("_total", "/sent_rows", "/refused_rows"))
        assert (metric.kind == "counter") == counts


@pytest.mark.promise("X-03")
@pytest.mark.parametrize(
    ("main", "others"),
    [
        ("learning_rate", ["lr"]),
        ("grad_norm", ["gradient_norm"]),
        ("gpu/0/memory_used_bytes", ["gpu_memory_mb", "gpu_memory_used_mb", "memory_allocated"]),
        ("samples_per_second", ["throughput", "samples_per_sec", "throughput_samples_per_sec"]),
    ],
)
def test_spellings_of_the_documents(main, others):
    """Each spelling of the documents has one canonical name, which is found from every other spelling."""
    assert {canonical(name) for name in [main, *others]} == {main}
    for name in others:
        found = dict(spellings(name))
        assert {main, *others} <= found.keys()
        assert list(found)[:2] == [name, main]


@pytest.mark.promise("S1-051")
@pytest.mark.parametrize(
    ("name", "main", "unit"),
    [
        ("loss", "loss", ""),
        ("accuracy", "accuracy", "ratio"),
        ("learning_rate", "learning_rate", ""),
        ("grad_norm", "grad_norm", ""),
        ("batch_time", "step_seconds", "seconds"),
        ("cpu_memory_mb", "process/0/memory_bytes", "MiB"),
        ("gpu_memory_mb", "gpu/0/memory_used_bytes", "MiB"),
    ],
)
def test_training_names(name, main, unit):
    """The training metrics of the documents are known, with the unit the documents give."""
    assert (canonical(name), unit_of(name)) == (main, unit)


@pytest.mark.parametrize(
    ("name", "main", "unit"),
    [
        ("cpu_usage_percent", "cpu/usage_ratio", "percent"),
        ("memory_usage_percent", "memory/used_ratio", "percent"),
        ("gpu_utilization", "gpu/0/utilization_ratio", "percent"),
        ("gpu_temperature", "gpu/0/temperature_celsius", "celsius"),
        ("gpu_power_watts", "gpu/0/power_watts", "watts"),
        ("disk_read_mb_s", "disk/read_bytes_per_second", "MiB/second"),
    ],
)
def test_system_names(name, main, unit):
    """The system metrics of the documents are known, with the unit the documents give (S1-052)."""
    assert (canonical(name), unit_of(name)) == (main, unit)


@pytest.mark.promise("X-04")
def test_mebibytes():
    """MB of the documents is 2**20 bytes, GB is 2**30, and both are labelled so."""
    assert (aliases["gpu_memory_used_mb"].factor, aliases["memory_available_gb"].factor) == (2**20, 2**30)
    assert format_value(22500, unit_of("gpu_memory_used_mb")) == "22 GiB"
    assert format_value(1.5, unit_of("memory_available_gb")) == "1.5 GiB"


def test_spelling_factors():
    """A value found under another spelling is converted to the unit of the name that was asked for."""
    found = dict(spellings("gpu_memory_mb", instance=2))
    assert found["gpu/2/memory_used_bytes"] == 1 / MIB
    assert found["gpu_memory_used_mb"] == 1
    assert dict(spellings("gpu/1/memory_used_bytes", instance=1))["gpu_memory_mb"] == MIB
    assert spellings("my/own") == [("my/own", 1.0)]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("phase/data", "seconds"),
        ("phase/my own", "seconds"),
        ("gpu/7/power_watts", "watts"),
        ("cache/used_bytes", "bytes"),
        ("queue_seconds", "seconds"),
        ("cache/hit_ratio", "ratio"),
        ("disk_percent", "percent"),
        ("model_size_mb", "MiB"),
        ("avg_latency_ms", "milliseconds"),
        ("io/bytes_per_second", "bytes/second"),
        ("stepscope/bytes_total", "bytes"),
        ("nbytes", ""),
        ("rms", ""),
        ("whatever", ""),
        ("", ""),
    ],
)
def test_units(name, unit):
    """Units come from the table, then from prefix and suffix; a user's own word has none."""
    assert unit_of(name) == unit


def test_metadata():
    """Instances and aliases share the metadata of their metric; unknown names have none."""
    assert metric_of("gpu/3/power_watts") == metric_of("gpu_power_watts") == BY_NAME["gpu/*/power_watts"]
    assert metric_of("mine") is None
    assert metric_of("grad_zero_ratio/encoder.0.attention") == BY_NAME["grad_zero_ratio/*"]
    assert metric_of("mine/encoder") is None
    assert metric_of("stepscope/sink/my-mlflow.2/behind_rows") == BY_NAME["stepscope/sink/*/behind_rows"]
    assert metric_of("stepscope/sink/mlflow") is None


@pytest.mark.promise("X-03")
@pytest.mark.parametrize("names", [["acc", "accuracy"], ["accuracy", "acc"], ["train_accuracy", "acc", "accuracy"]])
def test_no_other_spelling_stands_in_for_a_recorded_name(names):
    """Where the canonical name was recorded it stands for itself, in any order; else the first spelling does."""
    assert by_canonical(names) == {"accuracy": "accuracy"}
    assert by_canonical(["x", "acc", "train_accuracy"]) == {"x": "x", "accuracy": "acc"}
