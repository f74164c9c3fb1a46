from __future__ import annotations

import shutil
import zipfile

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.core.ring import NO_STEP
from stepscope.importers import formats
from stepscope.importers.trackers import archive
from tests.importers import tracker_files
from tests.importers.tracker_files import CLEARML, COMET
from tests.importers.vendors import texts, vendor

CLEARML_SCRIPT = """
import json, os
os.environ.update(CLEARML_CACHE_DIR=os.path.abspath("cache"), CLEARML_LOG_LEVEL="ERROR")
from clearml import Task

Task.set_offline(True)
quiet = dict(auto_connect_frameworks=False, auto_resource_monitoring=False, auto_connect_streams=False)
task = Task.init(project_name="vision/é", task_name="first é", tags=["b", "a"], **quiet)
task.connect({"lr": 0.1, "model": {"layers": 2}})
task.set_comment("a note")
logger = task.get_logger()
for step, value in [(0, 1.0), (2, 5e-324), (1, -0.0), (1, 3.5)]:
    logger.report_scalar("train/é", "loss", value, step)
    logger.report_scalar("acc", "acc", value, step)
logger.report_single_value("best", 0.5)
logger.report_histogram("h", "v", [1, 2, 3], iteration=1)
task.close()
print(json.dumps({"folder": str(task.get_offline_mode_folder()), "id": task.id}))
"""
COMET_SCRIPT = """
import json, math, os, glob
import comet_ml

experiment = comet_ml.OfflineExperiment(project_name="vision é", workspace="w", offline_directory=".", log_code=False,
    log_git_metadata=False, log_git_patch=False, display_summary_level=0, log_env_gpu=False, log_env_cpu=False)
experiment.set_name("first é")
experiment.add_tag("a")
experiment.log_parameters({"lr": 0.1, "layers": 2})
for step, value in [(0, 1.0), (2, math.nan), (1, math.inf), (1, -math.inf), (1, 5e-324)]:
    experiment.log_metric("loss", value, step=step)
    experiment.log_metrics({"train/é acc": value}, step=step)
with experiment.train():
    experiment.log_metric("inner", 2, step=9)
experiment.log_other("k", "v")
experiment.log_text("hello")
experiment.end()
print(json.dumps({"id": experiment.get_key(), "zip": glob.glob("*.zip")}))
"""


def points(run, name):
    """Return the points of a metric: step and value as text."""
    series = run.series(name)
    return list(zip(series.step.tolist(), texts(series.value), strict=True))


@pytest.mark.slow
def test_what_clearml_writes_offline_is_read(tmp_path):
    """Folder and zip of a session give the same run, once, with every value at its iteration."""
    found = vendor(CLEARML_SCRIPT, tmp_path)
    (both,) = formats.read(str(tmp_path / "cache"))
    shutil.move(found["folder"], tmp_path / "alone")
    for run in (both, *formats.read(str(tmp_path / "alone")), *formats.read(str(tmp_path / "cache"))):
        logged = [(0, "1.0"), (2, "5e-324"), (1, "-0.0"), (1, "3.5")]
        assert points(run, "train/é/loss") == points(run, "acc") == logged
        assert points(run, "Summary/best") == [(NO_STEP, "0.5")]
        facts = {"run_id": found["id"], "name": "first é", "project": "vision/é", "notes": "a note"}
        assert run.facts.items() >= {**facts, "config": {"lr": 0.1, "model/layers": 2}}.items()
        assert sorted(run.facts["tags"]) == ["a", "b"]
        assert any("no scalars (plot), left out: h/v" in note for note in run.notes)


@pytest.mark.slow
def test_what_comet_writes_offline_is_read_without_extracting(tmp_path):
    """Every value at every step is there, non-finite ones and repeated steps included."""
    found = vendor(COMET_SCRIPT, tmp_path, COMET_API_KEY="x" * 25, COMET_LOGGING_CONSOLE="ERROR")
    (run,) = formats.read(str(tmp_path / found["zip"][0]))
    logged = [(0, "1.0"), (2, "nan"), (1, "inf"), (1, "-inf"), (1, "5e-324")]
    assert points(run, "loss") == points(run, "train/é acc") == logged
    assert points(run, "train_inner") == [(9, "2.0")]
    facts = {"run_id": found["id"], "name": "first é", "project": "vision é", "tags": ["a"], "state": "finished"}
    assert run.facts.items() >= {**facts, "config": {"lr": 0.1, "layers": 2}}.items()
    assert run.facts["created"] <= run.series("loss").time.min() <= run.facts["ended"]


def read(tmp_path, files, method=zipfile.ZIP_DEFLATED):
    path = tmp_path / "a.zip"
    path.write_bytes(tracker_files.archive(files, method))
    return formats.read(str(path))[0]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_packed_by_any_method_are_read(tmp_path, method):
    """What Python can unpack is read."""
    assert points(read(tmp_path, COMET, method), "loss") == [(1, "nan")]


def test_a_zip_bomb_is_read_up_to_its_limit(tmp_path, monkeypatch):
    """A member that unpacks to far more than real logs do is left, and the notes tell."""
    monkeypatch.setattr(archive, "ALWAYS_BYTES", 1000)
    monkeypatch.setattr(archive, "MOST_RATIO", 2)
    run = read(tmp_path, {**COMET, "messages.json": COMET["messages.json"] + b" \n" * 1_000_000})
    assert points(run, "loss") == [(1, "nan")]
    assert any("unpacks to more than its limit" in note for note in run.notes)


def test_documents_and_lines_beyond_their_limit_are_left_out(tmp_path, monkeypatch):
    """A document that is decoded at once is bounded, and so is a line."""
    monkeypatch.setattr(archive, "MOST_DOCUMENT_BYTES", 200)
    run = read(tmp_path, {**CLEARML, "task.json": b'{"a": "' + b"x" * 300 + b'"}'})
    assert any("task.json is larger" in note for note in run.notes)
    monkeypatch.setattr(archive, "PIECE", 100)
    with pytest.raises(StepscopeError, match="no metric"):
        read(tmp_path, {**COMET, "messages.json": b"x" * 1000})


@pytest.mark.parametrize(
    ("files", "note"),
    [
        ({**COMET, "experiment.json": b"[1]"}, "experiment.json is no JSON object"),
        ({**COMET, "experiment.json": b"[" * 100_000}, "experiment.json is no JSON object"),
        ({**COMET, "messages.json": COMET["messages.json"] + b"[1]\nx\n"}, "no messages, left out (2 times)"),
        ({**CLEARML, "task.json": b"{"}, "task.json is no JSON object"),
        ({**CLEARML, "metrics.jsonl": CLEARML["metrics.jsonl"] + b"{}\n[[]]\n"}, "no JSON lists, left out"),
    ],
)
def test_damaged_members_cost_only_themselves(tmp_path, files, note):
    """The rest is read, and the notes tell what was left out."""
    run = read(tmp_path, files)
    assert run.columns
    assert any(note in text for text in run.notes)


def test_a_cut_archive_is_refused_in_plain_words(tmp_path):
    """The directory of a zip is at its end."""
    path = tmp_path / "a.zip"
    path.write_bytes(tracker_files.archive(COMET)[:-30])
    with pytest.raises(StepscopeError, match="no format"):
        formats.read(str(path))
    with pytest.raises(StepscopeError, match="no whole zip archive; check whether it was cut"):
        formats.read(str(path), "comet")


def test_a_folder_of_clearml_that_is_being_written_is_read(tmp_path):
    """A last line without its end is left out, and missing files are absent."""
    for name, data in {**CLEARML, "metrics.jsonl": CLEARML["metrics.jsonl"] + b'[{"iter": 2'}.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "log.jsonl").unlink()
    (run,) = formats.read(str(tmp_path))
    assert points(run, "train/loss" if "train/loss" in run.columns else "loss") == [(1, "0.5")]
    assert any("the last line of metrics.jsonl is cut" in note for note in run.notes)
