from __future__ import annotations

import copy
import importlib.util
import inspect
import math
import pickle

import numpy as np
import pytest

from stepscope import wandb
from stepscope.integrations.wandb_drop_in.unknown import Unknown
from tests.integrations.test_wandb_drop_in import alone, ended, points

pytestmark = pytest.mark.processes
__all__ = ["alone"]

ISSUE = (
    *("init", "log", "finish", "run", "config", "summary", "define_metric", "watch", "save", "alert", "Table"),
    *("Image", "Histogram", "Artifact", "log_artifact", "login", "Settings", "Api"),
)
"""The names that the drop-in promises."""
OF_RUNS = ("id", "name", "url", "dir", "config", "summary", "tags", "group", "get_url", "project", "step")
USED = (
    *("AlertLevel", "Audio", "Error", "Html", "Molecule", "Object3D", "Plotly", "Run", "UsageError", "Video"),
    *("join", "plot", "plot_table", "require", "restore", "setup", "teardown", "termwarn", "unwatch", "use_artifact"),
    *("util", "errors", "sdk", "__version__"),
)
"""Other names that scripts and frameworks use."""


def missing(names, owner):
    return [name for name in names if isinstance(getattr(owner, name), Unknown)]


def test_names_that_scripts_use_exist():
    """Every promised name, and those that frameworks use, is there; a run has its own."""
    run = wandb.init(project="names")
    assert missing((*ISSUE, *USED), wandb) == []
    assert missing(OF_RUNS, run) == []


def test_init_takes_every_keyword_of_wandb():
    """The signature has all keywords of the imitated version; the real package, where installed, agrees."""
    ours = set(inspect.signature(wandb.init).parameters)
    assert {"project", "name", "config", "entity", "save_code", "sync_tensorboard", "monitor_gym", "resume"} <= ours
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    from wandb.sdk.wandb_init import init

    assert set(inspect.signature(init).parameters) <= ours


def test_keyword_of_a_later_version_is_told_once(capsys):
    """An unknown keyword of `init` has no effect and is named."""
    wandb.init(project="names", brand_new=1)
    assert "wandb.init(brand_new=...) is unknown" in capsys.readouterr().err


def test_unknown_name_is_told_once_and_goes_on(capsys):
    """Whatever a loop does with a name that does not exist has no effect, and stderr has one line."""
    run = wandb.init(project="names")
    capsys.readouterr()
    for step in range(9000):
        wandb.launch_rockets(step).target["moon"].fire()
        with wandb.launch_rockets as rockets:
            assert list(rockets) == []
        assert not wandb.launch_rockets
        run.launch_rockets(step)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["wandb.launch_rockets", "wandb.run.launch_rockets"]


def test_unknown_name_may_be_imported_decorated_and_inherited():
    """`from … import Anything` works; a decorated function stays itself; a class may derive from it."""
    from stepscope.wandb import Anything

    @Anything
    def double(x):
        return 2 * x

    class Callback(Anything):
        pass

    assert (double(2), Callback.__mro__[1], isinstance(3, Anything)) == (4, object, False)
    Anything["key"] = 1
    del Anything["key"]
    assert (len(Anything), "key" in Anything) == (0, False)


def test_pythons_own_names_are_not_invented():
    """inspect, copy and pickle see the truth: Python's and notebooks' names raise AttributeError."""
    for owner in (wandb, wandb.Nothing, wandb.init(project="names"), wandb.Table(), wandb.Image(), wandb.Artifact("a")):
        assert not hasattr(owner, "__wrapped__")
        assert not hasattr(owner, "_repr_html_")
    inspect.getmembers(wandb.run)
    run, config = wandb.run, wandb.config
    config.update({"a": [1]})
    assert (copy.deepcopy(run) is run, pickle.loads(pickle.dumps(run)) is run) == (True, True)
    assert dict(copy.deepcopy(config)) == dict(pickle.loads(pickle.dumps(config))) == {"a": [1]}
    assert copy.copy(wandb.Table(columns=["a"])).columns == ["a"]


class Hostile:
    """An object whose every answer is an exception."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __str__(self):
        raise RuntimeError

    __repr__ = __float__ = __eq__ = __str__
    __hash__ = None


def test_hostile_values_do_not_reach_the_training():
    """Keys that are no text, circular and deep dicts, odd objects: nothing raises, and the good values are there."""
    run = wandb.init(project="hostile")
    circular = {"x": 1.0}
    circular["self"] = circular
    wandb.log({1: 2.0, None: 3.0, ("a", 1): 4.0, "ok": 5.0})
    wandb.log({"bad": Hostile(), "ok": 6.0})
    wandb.log({"circular": circular, "ok": 7.0})
    wandb.log({"huge": 10**400, "complex": 1j, "bytes": b"\xff", "set": {1}, "ok": 8.0, "function": print})
    wandb.log("no dict")
    wandb.log(None)
    wandb.log({"ok": 9.0}, step="seven")
    wandb.log({"ok": 10.0}, step=math.nan)
    wandb.log({"nan": math.nan, "inf": math.inf, "ok": 11.0})
    wandb.log({f"name/{at}": at for at in range(2000)})
    wandb.log_artifact("/nowhere/at/all")
    wandb.define_metric(3, step_metric=4, summary="strange")
    wandb.Histogram("no numbers")
    wandb.Table(data=5)
    past = ended(run)
    assert [value for _, value in points(past, "ok")] == [5, 6, 7, 8, 9, 10, 11]
    assert points(past, "1") == [(0, 2.0)]
    assert points(past, "name/1999")[0][1] == 1999


def test_hostile_config_is_stored_without_secrets():
    """Secrets are redacted on disk, the script still sees them; circular and odd values do not raise."""
    circular = {"lr": 1}
    circular["self"] = circular
    run = wandb.init(project="hostile", config={"api_key": "sk-0123456789ABCDEFGHIJ", "lr": 0.1, 5: 6, "c": circular})
    wandb.config.update({"password": "hunter22", "odd": Hostile(), "array": np.arange(10**6)})
    wandb.config.update("/nowhere/config.yaml")
    wandb.config.update(7)
    assert wandb.config.password == "hunter22"
    past = ended(run)
    assert (past.config["api_key"], past.config["password"]) == ("[redacted]", "[redacted]")
    assert (past.config["lr"], past.config["5"], past.config["c"]["lr"]) == (0.1, 6, 1)
    for file in past.path.rglob("*"):
        assert not file.is_file() or b"hunter22" not in file.read_bytes()


def test_config_files_of_wandb_are_read(tmp_path):
    """`config="file.yaml"` takes names with a description and a value, as W&B writes them."""
    (tmp_path / "config.yaml").write_text("wandb_version: 1\nlr:\n  desc: rate\n  value: 0.5\nseed: 3\n")
    wandb.init(project="names", config=str(tmp_path / "config.yaml"))
    assert dict(wandb.config) == {"lr": 0.5, "seed": 3}
