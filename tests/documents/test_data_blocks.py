"""Every YAML and JSON block of the mission's documents is one that we read or write."""

from __future__ import annotations

import inspect
import json
import re

import pytest
import yaml

from stepscope.core.config import load
from stepscope.exporters.files import monitor_rows
from tests.documents import seeds

pytestmark = pytest.mark.skipif(not seeds.documents(), reason=seeds.ABSENT)


def ids(block):
    return block.place


def leaves(value, at=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*at, key)
            yield from leaves(item, (*at, key))


@pytest.mark.promise("X-13", "X-08")
@pytest.mark.parametrize("block", [b for b in seeds.blocks("yaml") if b.document != "003"], ids=ids)
def test_configurations_load_as_written(block, tmp_path):
    """A configuration of a document is taken as it is: no key is unknown, no value is refused."""
    path = tmp_path / "config.yaml"
    path.write_text(block.code, encoding="utf-8")
    config = load([path])
    assert config.sources
    assert not [notice for notice in config.notices if "unknown" in notice]


@pytest.mark.promise("X-13")
@pytest.mark.parametrize("block", [b for b in seeds.blocks("yaml") if b.document == "003"], ids=ids)
def test_callbacks_take_their_options(block):
    """A callback's configuration names a class of ours, and every key is one of its parameters."""
    import stepscope.callbacks as face

    [(_, options)] = yaml.safe_load(block.code).items()
    kind = getattr(face, options.pop("_target_").rpartition(".")[2])
    pytest.importorskip("lightning", reason="the callbacks are Lightning's")
    assert options.keys() <= inspect.signature(kind).parameters.keys()
    kind(**options)


def written(keys, folder):
    """Return what we write where a document shows these keys."""
    if "gpu_index" in keys:
        return monitor_rows.gpu_row({"gpu/0/utilization_ratio": 0.5}, 0, 0)
    if "gradient_norm" in keys:
        return monitor_rows.training_row({"step": 1, "loss": 0.5}, 0)
    if "experiment_name" in keys:
        from stepscope.metrics import TrainingLogger

        logger = TrainingLogger(folder, "verifier")
        logger.log_step(1, {"loss": 0.5, "reward": 0.5}, [0.0, 0.5, 1.0])
        return json.loads(logger.export_all().read_text(encoding="utf-8"))
    from stepscope.profiling import ComprehensiveProfiler

    profiler = ComprehensiveProfiler(device=0)
    profiler.set_baseline()
    profiler.start_iteration()
    profiler.end_iteration(num_samples=4, num_tokens=64)
    assert profiler.export_to_json(folder / "profile.json")
    return json.loads((folder / "profile.json").read_text(encoding="utf-8"))


@pytest.mark.promise("X-13", "S4-034")
@pytest.mark.parametrize("block", seeds.blocks("json"), ids=ids)
def test_what_we_write_has_every_key(block, tmp_path):
    """Every key of a document's JSON, at every depth, is in what we write."""
    text = re.sub(r",\s*\.\.\.", "", block.code).replace("{...}", "{}")
    shown = json.loads(text)
    ours = set(leaves(written(shown.keys(), tmp_path)))
    assert set(leaves(shown)) <= ours
