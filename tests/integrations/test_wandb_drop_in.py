from __future__ import annotations

import argparse
import math
import os

import numpy as np
import pytest

import stepscope
from stepscope import wandb
from stepscope.integrations.wandb_drop_in.starting import ACTIVE
from stepscope.integrations.wandb_drop_in.unknown import NOTICES
from stepscope.session.current import CURRENT
from stepscope.session.run import Run
from tests.integration.processes import wait_until_written

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """No run and no notice of another test is left, and none stays."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CURRENT, "run", Run.off())
    NOTICES.counts.clear()
    yield
    ACTIVE.finish()


def ended(run):
    """The run, read once its watcher has written all of it."""
    run.finish()
    return wait_until_written(run.recording)


def points(past, name):
    series = past.series(name)
    return list(zip(series.step.tolist(), series.value.tolist(), strict=True))


def test_steps_follow_the_counter_of_wandb():
    """A row without a step counts on; `step=` opens a row that the next call without one closes."""
    run = wandb.init(project="steps")
    wandb.log({"a": 1})
    wandb.log({"a": 2})
    wandb.log({"a": 3}, step=10)
    wandb.log({"b": 4}, step=10)
    wandb.log({"c": 5})
    assert run.step == 11
    wandb.log({"d": 6}, commit=False)
    wandb.log({"e": 7}, commit=True)
    wandb.log({"f": 8}, step=20, commit=True)
    wandb.log({"g": 9})
    past = ended(run)
    assert points(past, "a") == [(0, 1), (1, 2), (10, 3)]
    assert [points(past, name)[0][0] for name in "bcdefg"] == [10, 10, 11, 11, 20, 21]


def test_row_that_comes_late_is_kept(capsys):
    """W&B drops a step below the current one; here it is recorded at its step, and that is said once."""
    run = wandb.init(project="late")
    wandb.log({"a": 1}, step=5)
    wandb.log({"a": 2}, step=3)
    wandb.log({"a": 3}, step=2)
    wandb.log({"a": 4}, step=5)
    assert points(ended(run), "a") == [(5, 1), (3, 2), (2, 3), (5, 4)]
    assert capsys.readouterr().err.count("W&B would drop it") == 1


def test_defined_axis_is_the_step_of_its_metrics():
    """A metric with an axis has the axis's value as its step; a row without the axis takes its last value."""
    run = wandb.init(project="axes")
    wandb.define_metric("epoch")
    wandb.define_metric("val/*", step_metric="epoch")
    wandb.log({"val/loss": 1, "epoch": 100, "loss": 9})
    wandb.log({"val/loss": 2})
    wandb.log({"val/loss": 3}, step=7)
    wandb.log({"epoch": 300}, step=7)
    past = ended(run)
    assert points(past, "val/loss") == [(100, 1), (100, 2), (300, 3)]
    assert points(past, "loss") == [(0, 9)]
    assert points(past, "epoch") == [(0, 100), (1, 100), (7, 300)]


def test_summary_is_the_last_value_unless_defined():
    """min, max, mean, last and first are kept as W&B shows them; none keeps nothing; a script may set values."""
    run = wandb.init(project="summary")
    for word in ("min", "max", "mean", "last", "first", "none", "min,max"):
        wandb.define_metric(word, summary=word)
    for value in (3, 1, 2):
        wandb.log(dict.fromkeys(("min", "max", "mean", "last", "first", "none", "min,max", "plain"), value))
    wandb.summary["best"] = np.float32(0.5)
    wandb.run.summary.update({"text": "x"})
    assert {key: run.summary[key] for key in ("min", "max", "mean", "last", "first", "min,max", "plain", "best")} == {
        "min": {"min": 1},
        "max": {"max": 3},
        "mean": {"mean": 2},
        "last": {"last": 2},
        "first": {"first": 3},
        "min,max": {"min": 1, "max": 3},
        "plain": 2,
        "best": 0.5,
    }
    assert ("none" in wandb.summary, wandb.summary.get("absent", 7)) == (False, 7)
    assert [event["values"] for event in ended(run).events("summary")] == [{"best": 0.5}, {"text": "x"}]


def test_config_is_read_and_set_like_wandbs(capsys):
    """Attribute, item, namespace, nested dicts and defaults work; a change that was not allowed is kept and told."""
    run = wandb.init(project="config", config=argparse.Namespace(lr=0.1, model={"width": 4}))
    wandb.config.update({"lr": 0.2}, allow_val_change=True)
    wandb.config.setdefaults({"lr": 9, "seed": 1})
    wandb.config.batch = 8
    wandb.config["optimizer"] = "adam"
    assert (wandb.config.lr, wandb.config["model"]["width"], wandb.config.get("nothing", 5)) == (0.2, 4, 5)
    assert sorted(wandb.config.keys()) == ["batch", "lr", "model", "optimizer", "seed"]
    assert dict(wandb.config) == wandb.config.as_dict() == dict(wandb.config.items())
    assert not hasattr(wandb.config, "absent")
    assert not capsys.readouterr().err
    wandb.config.lr = 0.3
    assert "allow_val_change" in capsys.readouterr().err
    assert ended(run).config == {"lr": 0.3, "model": {"width": 4}, "seed": 1, "batch": 8, "optimizer": "adam"}


def test_settings_come_from_arguments_settings_and_environment(monkeypatch, tmp_path):
    """An argument is stronger than `settings`, those are stronger than WANDB_ variables."""
    monkeypatch.setenv("WANDB_PROJECT", "from the environment")
    monkeypatch.setenv("WANDB_NAME", "named there")
    monkeypatch.setenv("WANDB_TAGS", "a, b")
    monkeypatch.setenv("WANDB_NOTES", "notes")
    run = wandb.init(settings=wandb.Settings(run_name="by settings", run_group="g"), job_type="train", group="mine")
    assert (run.project, run.name, run.tags, run.notes) == ("from-the-environment", "by settings", ("a", "b"), "notes")
    assert (run.group, run.job_type) == ("mine", "train")
    [labels] = ended(run).events("labels")
    assert (labels["tags"], labels["group"], labels["job_type"]) == (["a", "b"], "mine", "train")


def test_folder_is_the_scripts_unless_the_user_chose_one(monkeypatch, tmp_path):
    """`dir=` holds the runs, except where STEPSCOPE_DIR says otherwise."""
    run = wandb.init(project="p", dir=tmp_path / "mine")
    assert str(run.recording.path).startswith(os.environ["STEPSCOPE_DIR"])
    run.finish()
    monkeypatch.delenv("STEPSCOPE_DIR")
    run = wandb.init(project="p", dir=tmp_path / "mine")
    assert run.recording.path == tmp_path / "mine" / "stepscope-runs" / "p" / run.id
    assert (run.url, os.path.isdir(run.dir)) == (run.recording.path.as_uri(), True)


@pytest.mark.parametrize("how", ["argument", "WANDB_MODE", "WANDB_DISABLED"])
def test_disabled_run_records_nothing(monkeypatch, tmp_path, how):
    """A disabled run takes every call and leaves no file; summary and config work."""
    if how != "argument":
        monkeypatch.setenv(how, "disabled" if how == "WANDB_MODE" else "true")
    run = wandb.init(project="off", config={"a": 1}, **({"mode": "disabled"} if how == "argument" else {}))
    wandb.log({"loss": 1})
    assert (run.disabled, wandb.run is run, wandb.summary["loss"], wandb.config.a) == (True, True, 1, 1)
    wandb.finish()
    assert not os.listdir(os.environ["STEPSCOPE_DIR"])


@pytest.mark.parametrize("resume", ["allow", "must", "auto", True])
def test_resumed_run_counts_on(resume):
    """With its id and `resume`, a run gets another attempt, and W&B's counter goes on."""
    first = wandb.init(project="again", id="my/run", resume="allow", config={"lr": 1, "seed": 2})
    wandb.config.late = 3
    for _ in range(3):
        wandb.log({"loss": 1.0})
    ended(first)
    run = wandb.init(project="again", id="my/run", resume=resume, config={"lr": 5})
    assert (run.id, run.resumed, run.step, run.starting_step) == ("my-run", True, 3, 3)
    wandb.log({"loss": 2.0})
    past = ended(run)
    assert points(past, "loss") == [(0, 1), (1, 1), (2, 1), (3, 2)]
    assert past.series("loss").attempt.tolist() == [0, 0, 0, 1]
    assert dict(run.config) == past.config == {"lr": 5, "seed": 2, "late": 3}


def test_last_run_is_resumed_if_it_did_not_end_well():
    """`resume="auto"` without an id continues the last run of the project after a failure, and only then."""
    with pytest.raises(ZeroDivisionError), wandb.init(project="auto") as first:
        wandb.log({"loss": 1 / 0})
    wait_until_written(first.recording)
    second = wandb.init(project="auto", resume="auto")
    assert (second.id, second.resumed) == (first.id, True)
    second.finish()
    assert not wandb.init(project="other", resume=True).resumed


def test_resume_never_makes_another_run(capsys):
    """Where W&B would end the script because the run exists, a run of another id begins, and that is said."""
    ended(wandb.init(project="again", id="one"))
    run = wandb.init(project="again", id="one", resume="never")
    assert run.id.startswith("one-")
    assert "run one exists" in capsys.readouterr().err


def test_second_init_follows_reinit():
    """By default it returns the current run; `reinit` finishes that first, or begins one beside it."""
    first = wandb.init(project="twice")
    assert wandb.init(project="other", config={"a": 1}) is first
    assert first.config.a == 1
    beside = wandb.init(project="twice", reinit="create_new")
    assert (beside is first, first.recording.recording) == (False, True)
    third = wandb.init(project="twice", reinit=True)
    assert (first.recording.recording, beside.recording.recording, wandb.run is third) == (False, False, True)
    with third:
        pass
    assert wandb.run is None


def test_calls_before_init_raise_as_wandb_does():
    """Scripts rely on it: without a run, what needs one raises `wandb.Error`, and `wandb.run` is None."""
    assert wandb.run is None
    for call in (
        lambda: wandb.log({"a": 1}),
        lambda: wandb.config.lr,
        lambda: wandb.config.update({}),
        lambda: wandb.summary["a"],
        lambda: wandb.save("x"),
    ):
        with pytest.raises(wandb.Error, match=r"call wandb.init\(\) first"):
            call()
    wandb.finish()


def test_run_of_an_exception_has_failed():
    """The run of a `with` block that an exception leaves is failed, with its traceback; the exception goes on."""
    with pytest.raises(ZeroDivisionError), wandb.init(project="failing") as run:
        wandb.log({"a": 1 / 0})
    past = wait_until_written(run.recording)
    assert (past.state, wandb.run) == ("failed", None)


def test_media_are_events_without_their_bytes(tmp_path):
    """Pictures, tables, sounds and charts leave kind, name, step and size; a histogram is Stepscope's own."""
    (tmp_path / "sound.wav").write_bytes(b"12345")
    run = wandb.init(project="media")
    table = wandb.Table(columns=["x", "y"], data=[[1, 2]])
    table.add_data(3, 4)
    wandb.log(
        {
            "image": wandb.Image(np.zeros((4, 5, 3), np.uint8), caption="c"),
            "images": [wandb.Image(np.zeros((2, 2), np.uint8))] * 3,
            "table": table,
            "audio": wandb.Audio(str(tmp_path / "sound.wav"), sample_rate=8000),
            "plot": wandb.plot.line(table, "x", "y", title="t"),
            "html": wandb.Html("<b>"),
            "histogram": wandb.Histogram([1, 2, 3]),
            "made": wandb.Histogram(np_histogram=([2, 1], [0.0, 1.0, 2.0])),
            "array": np.arange(100.0),
            "text": "words",
        }
    )
    events = {event.get("name", event["kind"]): event for event in ended(run).events() if event["step"] == 0}
    assert (events["image"]["kind"], events["image"]["size_bytes"], events["image"]["shape"]) == (
        "image",
        60,
        [4, 5, 3],
    )
    assert (events["images"]["items"], events["images"]["size_bytes"]) == (3, 12)
    assert (events["table"]["kind"], events["table"]["rows"], events["table"]["columns"]) == ("table", 2, ["x", "y"])
    assert (events["audio"]["size_bytes"], events["html"]["kind"], events["plot"]["plot"]) == (5, "html", "line")
    assert [events[name]["count"] for name in ("histogram", "made", "array")] == [3, 3, 100]
    assert events["log"]["values"] == {"text": "words"}


def test_artifacts_are_recorded_by_path_size_and_hash(tmp_path):
    """A logged artifact and a saved file leave an event; a later run of the project finds the files again."""
    (tmp_path / "model.pt").write_bytes(b"abc")
    run = wandb.init(project="files")
    artifact = wandb.Artifact("model", type="model", metadata={"score": 1})
    artifact.add_file(tmp_path / "model.pt", name="weights")
    assert wandb.log_artifact(artifact, aliases=["best"]) is artifact
    assert wandb.save(str(tmp_path / "*.pt")) == [str(tmp_path / "model.pt")]
    past = ended(run)
    [event] = past.events("artifact")
    assert (event["name"], event["type"], event["aliases"], event["size_bytes"]) == ("model", "model", ["best"], 3)
    sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path = str(tmp_path / "model.pt")
    assert event["files"] == [{"name": "weights", "path": path, "size_bytes": 3, "sha256": sha}]
    [saved] = past.events("saved_files")
    assert saved["files"][0]["sha256"] == sha
    wandb.init(project="files")
    assert wandb.use_artifact("entity/files/model:best").download() == str(tmp_path)


def test_recorded_runs_are_read_through_the_api():
    """`Api().runs(project)` and `.run(path)` give config, summary, state and history from the store."""
    run = wandb.init(project="read", name="first", config={"lr": 0.1}, tags=["t"])
    for step in range(4):
        wandb.log({"loss": 4.0 - step, "odd": step} if step % 2 else {"loss": 4.0 - step})
    wandb.summary["best"] = 1
    ended(run)
    [found] = wandb.Api().runs("entity/read")
    assert (found.id, found.name, found.state, found.config, found.tags) == (
        run.id,
        "first",
        "finished",
        {"lr": 0.1},
        ["t"],
    )
    assert (found.summary["loss"], found.summary["best"], found.summary["odd"]) == (1.0, 1, 3)
    same = wandb.Api().run(f"entity/read/{run.id}")
    assert [row["loss"] for row in same.history(pandas=False)] == [4, 3, 2, 1]
    assert [(row["_step"], row["odd"]) for row in same.scan_history(keys=["odd"])] == [(1, 1), (3, 3)]
    assert len(same.history(samples=2, pandas=False)) == 2
    assert wandb.Api().runs("read", filters={"config.lr": 0.2}) == []
    with pytest.raises(wandb.CommError):
        wandb.Api().run("read/nothing")


def test_run_that_the_script_began_itself_is_joined():
    """After `stepscope.init`, `wandb.init` records into that run, and `wandb.finish` leaves it open."""
    with stepscope.init(project="own") as own:
        run = wandb.init(project="other", config={"lr": 1})
        wandb.log({"loss": 2.0})
        wandb.finish()
        assert (run.id, own.recording) == (own.id, True)
    past = wait_until_written(own)
    assert (points(past, "loss"), past.config) == ([(0, 2)], {"lr": 1})


def test_values_of_any_number_type_are_recorded():
    """Python's and numpy's numbers, switches, tensors with a gradient and nested dicts give the same values."""
    torch = pytest.importorskip("torch")
    run = wandb.init(project="types")
    tensor = torch.tensor(2.5, requires_grad=True)
    wandb.log({"f": np.float32(0.5), "i": np.int64(3), "b": True, "t": tensor, "n": {"a": {"b": 7}}, "nan": math.nan})
    assert run.summary["t"] == 2.5
    past = ended(run)
    assert [points(past, name) for name in ("f", "i", "b", "t", "n.a.b")] == [[(0, v)] for v in (0.5, 3, 1, 2.5, 7)]
    assert math.isnan(points(past, "nan")[0][1])
