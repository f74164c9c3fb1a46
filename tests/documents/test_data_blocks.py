"""Every YAML, JSON and shell block of the mission's documents is one that we read, write or run."""

from __future__ import annotations

import inspect
import json
import re
import shlex

import pytest
import yaml

from stepscope.core.config import load
from stepscope.exporters import jsonl_rows
from tests.documents import seeds

pytestmark = pytest.mark.skipif(not seeds.documents(), reason=seeds.ABSENT)

SKIPPED = ("pip", "git", "cd", "black", "flake8", "lsof", "monitor.system_monitor")
"""Installers, tools of the author's own, and a line of Python among commands (it runs in test_system_monitor.py)."""
EQUIVALENTS = {
    "python -m monitoring.gpu_monitor": "monitor",
    "python -m monitoring.gpu_dashboard": "top",
    "python scripts/monitor_training.py": "scripts.monitor_training",
    "python scripts/monitor_training_example.py": "scripts.monitor_training_example",
    "python -m pytest": "tests",
    "uv run python runners/train.py": "hydra",
}
"""Commands of the documents, and what they are here: a command, a script, tests, or Hydra's composition."""
OTHER_MODES = {"dashboard": "top"}
"""A mode of the example script that is a command of its own here."""


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
        return jsonl_rows.gpu_row({"gpu/0/utilization_ratio": 0.5}, 0, 0)
    if "gradient_norm" in keys:
        return jsonl_rows.training_row({"step": 1, "loss": 0.5}, 0)
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


def commands():
    """Return the commands of all shell blocks, with continued lines joined, without comments."""
    found = []
    for block in seeds.blocks("bash"):
        for line in re.sub(r"\\\n\s*", " ", block.code).splitlines():
            words = re.sub(r"(^|\s)#.*", "", line).strip().removeprefix("sudo ")
            if words:
                found.append(pytest.param(words, id=f"{block.place} {words[:40]}"))
    return found


@pytest.mark.promise("X-13")
@pytest.mark.parametrize("line", commands())
def test_commands_have_an_equivalent(line):
    """Every command of a document is skipped by name, comes later by name, or is accepted by its equivalent here."""
    later = next((why for word, why in seeds.LATER.items() if word in line), "")
    if later or line.startswith(SKIPPED):
        return
    theirs, ours = next((pair for pair in EQUIVALENTS.items() if line.startswith(pair[0])), ("", ""))
    assert ours, f"no equivalent of {line}"
    arguments = shlex.split(line[len(theirs) :])
    if ours == "tests":
        assert all((seeds.ROOT / name).is_file() for name in arguments)
    elif ours == "hydra":
        composed(arguments)
    elif ours.startswith("scripts."):
        script_accepts(ours, arguments)
    else:
        stepscope_accepts([ours, *arguments])


def stepscope_accepts(arguments):
    from stepscope.cli.main import build_parser

    build_parser([arguments[0]]).parse_args(arguments)


def script_accepts(module, arguments):
    import importlib.util

    spec = importlib.util.spec_from_file_location("script", seeds.ROOT / f"{module.replace('.', '/')}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    if arguments[:1] == ["--mode"] and arguments[1] in OTHER_MODES:
        stepscope_accepts([OTHER_MODES[arguments[1]]])
        return
    script.parse(arguments)


def composed(arguments):
    """Let Hydra itself compose our callbacks with the overrides of a document; the rest are the user's own keys."""
    hydra = pytest.importorskip("hydra", reason="the command line is Hydra's")
    from stepscope.callbacks import hydra_arguments

    own = [word for word in hydra_arguments(arguments) if word.startswith("callbacks")]
    assert own
    with hydra.initialize_config_dir(str(seeds.ROOT / "configs"), version_base="1.3"):
        found = hydra.compose("lightning_example", overrides=own)
    assert any(callback.enabled for callback in found.callbacks.values())
