from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import stepscope
from stepscope.importers import formats
from tests.integration.processes import ended_runs, the_run

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "wandb_scripts"
OF_TIME = ("runtime", "per_second")
"""Parts of the names of values that differ from run to run."""
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def run_child(*words, folder, **environment):
    """Run Python in a folder; return what it printed. Fails with its stderr."""
    settings = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **settings, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def as_wandb(script, folder, **environment):
    return run_child("-m", "stepscope", "run", "--as-wandb", script, folder=folder, **environment)


def theirs(folder):
    """What the real wandb wrote: config, and the points of each metric under its own name."""
    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    [found] = formats.read(str(file))
    names = found.facts.get("names", {})
    columns = {names.get(name, name): series for name, series in found.columns.items()}
    logged = {name: points(series) for name, series in columns.items() if series.step.min() >= 0}
    return {key: value for key, value in found.facts["config"].items() if key != "_wandb"}, logged


def points(series):
    """The points of a series, as single precision keeps them: TensorBoard's files have no more."""
    return list(zip(series.step.tolist(), np.float32(series.value).tolist(), strict=True))


def same_points(logged, past):
    """Compare names, steps and values; of values that measure time, the steps."""
    assert set(logged) <= set(past.names())
    for name, expected in logged.items():
        ours = points(past.series(name))
        if any(part in name for part in OF_TIME):
            assert [step for step, _ in ours] == [step for step, _ in expected], name
        else:
            assert ours == expected, name


@pytest.mark.training
@pytest.mark.parametrize("style", ["nanogpt", "transformers", "lightning"])
def test_script_gives_the_same_with_wandb_and_with_us(style, tmp_path):
    """The unmodified script leaves the same keys, values, steps and config in W&B's file and in our run."""
    pytest.importorskip("wandb")
    pytest.importorskip({"nanogpt": "torch"}.get(style, style))
    script = SCRIPTS / f"{style}_style.py"
    run_child(script, folder=tmp_path)
    as_wandb(script, tmp_path)
    config, logged = theirs(tmp_path)
    past = the_run()
    assert logged
    same_points(logged, past)
    assert {key: past.config.get(key) for key in config if key != "args"}.keys() == config.keys() - {"args"}
    assert len(list(tmp_path.glob("wandb/*run-*"))) == 1


def test_random_calls_give_the_same_with_wandb_and_with_us(tmp_path):
    """Steps, open rows, axes with and without synchronisation and nested names agree over 300 random calls."""
    pytest.importorskip("wandb")
    script = SCRIPTS / "random_calls.py"
    run_child(script, folder=tmp_path)
    as_wandb(script, tmp_path)
    _, logged = theirs(tmp_path)
    assert len(logged) > 100
    same_points(logged, the_run())


@pytest.mark.training
def test_tensorboard_is_synchronised_as_wandb_does(tmp_path):
    """In cleanrl's style all values go through SummaryWriter; ours have TensorBoard's step, W&B has it as a column."""
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    script = SCRIPTS / "cleanrl_style.py"
    run_child(script, folder=tmp_path)
    as_wandb(script, tmp_path)
    config, logged = theirs(tmp_path)
    at = dict(logged["global_step"])
    past = the_run()
    same_points({name: [(int(at[step]), value) for step, value in found] for name, found in logged.items()}, past)
    assert past.config == config
    assert past.name == "CartPole-v1__ppo__1"


@pytest.fixture
def without_wandb(tmp_path):
    """The packages of this environment but for wandb, as a folder for the path of a child."""
    for name in ("lightning", "accelerate", "transformers"):
        pytest.importorskip(name)
    [packages] = [Path(path) for path in sys.path if path.endswith("site-packages") and (Path(path) / "torch").is_dir()]
    folder = tmp_path / "packages"
    folder.mkdir()
    for entry in packages.iterdir():
        if not entry.name.startswith(("wandb", "__pycache__")) and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return str(folder)


PROBE = """
import importlib.metadata, importlib.util, multiprocessing, sys
import wandb
from wandb.sdk.lib import RunDisabled
from wandb.wandb_run import Run
from wandb.integration.sb3 import WandbCallback
import wandb.util

def child(queue):
    queue.put((wandb.__version__, wandb.run is None))

if __name__ == "__main__":
    from accelerate.utils import is_wandb_available
    from lightning.pytorch.loggers.wandb import _WANDB_AVAILABLE
    from transformers.integrations import is_wandb_available as is_known
    print(bool(_WANDB_AVAILABLE), is_wandb_available(), is_known(), importlib.metadata.version("wandb"))
    print(importlib.util.find_spec("wandb").name, wandb.__name__, wandb.__spec__.name, len(wandb.util.generate_id()))
    run = wandb.init(project="p")
    print(isinstance(run, (Run, RunDisabled)), type(run) is wandb.Run)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
"""


@pytest.mark.training
def test_frameworks_find_the_stand_in_where_wandb_is_missing(tmp_path, without_wandb):
    """Lightning, Accelerate and Transformers take it for wandb; submodules are there, also in spawned processes."""
    (tmp_path / "probe.py").write_text(PROBE)
    path = os.pathsep.join((str(ROOT / "src"), without_wandb))
    python = sys._base_executable
    done = subprocess.run(
        [python, "-S", "-W", "ignore", "-m", "stepscope", "run", "--as-wandb", "probe.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "True True True 0.31.0",
        "wandb wandb wandb 8",
        "True True",
        "('0.31.0', True)",
    ]
    assert "wandb.integration.sb3.WandbCallback is not part of" in done.stderr


@pytest.mark.training
def test_accelerate_tracks_into_our_run(tmp_path):
    """`log_with="wandb"` under `--as-wandb` records config and values at the given steps, and its end ends nothing."""
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(
        """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, log_with="wandb")
accelerator.init_trackers("project", config={"lr": 0.1}, init_kwargs={"wandb": {"tags": ["a"]}})
for step in (5, 6, 8):
    accelerator.log({"loss": 1.0 / step}, step=step)
accelerator.end_training()
"""
    )
    as_wandb("train.py", tmp_path)
    past = the_run()
    assert points(past.series("loss")) == [(step, np.float32(1 / step)) for step in (5, 6, 8)]
    assert (past.config, past.state) == ({"lr": 0.1}, "finished")
    assert past.events("labels")[0]["tags"] == ["a"]


def test_several_runs_of_one_script_stay_apart(tmp_path):
    """The first `wandb.init` joins the run of `stepscope run`; one after its end begins a run of its own."""
    (tmp_path / "train.py").write_text(
        """
import wandb
for seed in range(3):
    with wandb.init(project="seeds", name=f"seed {seed}", config={"seed": seed}):
        wandb.log({"loss": float(seed)})
"""
    )
    as_wandb("train.py", tmp_path)
    found = {past.name: (past.project, past.config, past.series("loss").value.tolist()) for past in ended_runs()}
    assert found == {
        "seed 0": ("train", {"seed": 0}, [0.0]),
        "seed 1": ("seeds", {"seed": 1}, [1.0]),
        "seed 2": ("seeds", {"seed": 2}, [2.0]),
    }


def test_run_without_finish_keeps_what_was_held_back(tmp_path):
    """A script that just ends loses neither an open row nor an artifact nor a late setting."""
    (tmp_path / "train.py").write_text(
        """
import stepscope.wandb as wandb
wandb.init(project="p", config={"a": 1})
wandb.define_metric("x", step_metric="axis")
wandb.log({"x": 2.0}, step=4)
wandb.config.b = 2
artifact = wandb.Artifact("script", type="code")
artifact.add_file("train.py")
wandb.log_artifact(artifact)
"""
    )
    run_child("train.py", folder=tmp_path)
    past = the_run()
    assert (past.series("x").step.tolist(), past.config) == ([4], {"a": 1, "b": 2})
    assert past.events("artifact")[0]["sha256"]
    assert Counter(info.state for info in stepscope.runs()) == {"finished": 1}
