"""Following a live source: what is new is handed over, whatever the writer does to its file."""

import csv
import json
import os

import numpy as np
import pytest

from stepscope.core.errors import StepscopeError
from stepscope.importers import formats
from stepscope.importers.following import Tail
from stepscope.importers.scanning import FolderScan
from stepscope.importers.source_process import TailProcess


class Followed:
    """Follows a file; each wait of the reader lets the writer do its next act."""

    def __init__(self, path, acts, form=None):
        self.path, self.acts, self.now, self.told = str(path), list(acts), 0.0, []
        chosen = formats.FORMATS[form] if form else formats.detect(self.path)
        Tail(self.path, chosen, self.told.append, self.wait, lambda: self.now).run()

    def wait(self, seconds):
        self.now += seconds
        if self.acts:
            self.acts.pop(0)()
            return True
        return False

    @property
    def starts(self):
        return sum(what.is_start for what in self.told)

    def points(self, name, since_start=1):
        """Return steps and values of a metric as they were handed over, from the n-th start on."""
        found, starts = [], 0
        for what in self.told:
            starts += what.is_start
            for run in what.runs if starts >= since_start else ():
                if name in run.columns:
                    series = run.columns[name]
                    found += zip(series.step.tolist(), series.value.tolist(), strict=True)
        return found


def append(path, text):
    return lambda: write_bytes(path, text.encode())


def write_bytes(path, data):
    with path.open("ab") as file:
        file.write(data)


def rows(*steps):
    return "".join(json.dumps({"step": step, "loss": step / 2}) + "\n" for step in steps)


def test_new_rows_are_handed_over_once(tmp_path):
    """What was handed over does not come again, and the last hand-over says that it is the last."""
    path = tmp_path / "log.jsonl"
    path.write_text(rows(0, 1))
    seen = Followed(path, [append(path, rows(2)), append(path, rows(3, 4))])
    assert seen.points("loss") == [(step, step / 2) for step in range(5)]
    assert [len(what.runs) for what in seen.told] == [1, 1, 1, 0]
    assert seen.told[-1].is_over


def test_half_a_line_waits_for_its_rest(tmp_path):
    """A row counts once its line is complete; the rest of a file that has ended counts too."""
    path = tmp_path / "log.jsonl"
    path.write_text(rows(0))
    whole = rows(1)
    seen = Followed(path, [append(path, whole[:5]), append(path, whole[5:]), append(path, rows(2).rstrip())])
    assert seen.points("loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert [bool(what.runs) for what in seen.told] == [True, True, True, False]


def test_truncated_file_is_read_anew(tmp_path):
    """A file that is cut and written again starts a new reading, which tells so."""
    path = tmp_path / "log.jsonl"
    path.write_text(rows(0, 1, 2))
    seen = Followed(path, [lambda: path.write_text(rows(7)), append(path, rows(8))])
    assert seen.starts == 2
    assert seen.points("loss", since_start=2) == [(7, 3.5), (8, 4.0)]


def test_rotated_file_is_read_to_its_end_first(tmp_path):
    """Rows that were written just before a rotation are not lost, and the new file follows."""
    path = tmp_path / "log.jsonl"
    path.write_text(rows(0))

    def rotate():
        append(path, rows(1))()
        path.rename(tmp_path / "log.1")
        path.write_text(rows(2))

    seen = Followed(path, [rotate, append(path, rows(3))])
    assert seen.starts == 2
    assert seen.points("loss") == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]


def test_file_with_new_first_bytes_is_read_anew(tmp_path):
    """Lightning writes its CSV anew when a column is added: the file grows, but starts differently."""
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n0,1.0\n1,0.5\n")
    wider = "step,loss,accuracy\n0,1.0,\n1,0.5,\n2,0.25,0.9\n"
    seen = Followed(path, [lambda: path.write_text(wider), append(path, "3,0.125,\n")])
    assert seen.points("loss", since_start=2) == [(0, 1.0), (1, 0.5), (2, 0.25), (3, 0.125)]
    assert seen.points("accuracy") == [(2, 0.9)]


def test_document_is_read_anew_when_it_changes(tmp_path):
    """A trainer's state is written as a whole; one that is caught half written is read when it is complete."""
    path = tmp_path / "trainer_state.json"

    def write(steps):
        log = [{"step": step, "loss": float(step)} for step in range(steps)]
        return json.dumps({"global_step": steps, "log_history": log})

    path.write_text(write(2))
    half = write(3)[:-20]
    seen = Followed(path, [lambda: path.write_text(half), lambda: path.write_text(write(4))])
    assert seen.points("loss", since_start=seen.starts) == [(step, float(step)) for step in range(4)]


def test_file_that_disappears_is_told(tmp_path):
    """The parent learns that a file is gone; one that appears again is read anew."""
    path = tmp_path / "log.jsonl"
    path.write_text(rows(0))
    nothing = [lambda: None] * 10
    seen = Followed(path, [lambda: os.unlink(path), *nothing, lambda: path.write_text(rows(5))])
    assert any(what.is_gone for what in seen.told)
    assert seen.points("loss", since_start=2) == [(5, 2.5)]


def test_silent_source_gives_signs_of_life(tmp_path):
    """While nothing is new, the child says every two seconds that it is alive."""
    path = tmp_path / "log.jsonl"
    path.write_text(rows(0))
    seen = Followed(path, [lambda: None] * 40)  # 20 seconds
    assert len([what for what in seen.told if not what.runs and not what.is_over]) in range(8, 12)


def test_name_that_was_given_stays(tmp_path):
    """A later metric that has a better claim to a canonical name does not take it from an earlier one."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0, "train_loss": 1}\n')
    seen = Followed(path, [append(path, '{"step": 1, "train_loss": 0.5, "train/loss": 0.4}\n')])
    assert seen.points("loss") == [(0, 1.0), (1, 0.5)]
    assert seen.points("train/loss") == [(1, 0.4)]


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("jsonl", [json.dumps({"step": at, "loss": 1 / (at + 1), "note": "a"}) for at in range(40)]),
        ("step_log", [f"step:{at}/40 loss:{at / 8} train_time:{at * 10}ms" for at in range(40)]),
        ("step_log", [f"step:{at // 2} loss:{at / 8}" if at % 2 else f"Mean reward: {at / 4}" for at in range(1, 41)]),
        ("console_log", [f"STEP {at // 2}" if at % 2 else f"Gradient norm: {at / 4}" for at in range(1, 41)]),
        ("csv", ["step,loss,gpu", *(f"{at // 2},{at / 8},{at % 2}" for at in range(40))]),
        ("megatron", [f" iteration {at}/ 40 | lm loss: {at / 8} | grad norm: 1.5 |" for at in range(1, 40)]),
    ],
)
def test_followed_log_gives_the_series_of_its_import(tmp_path, form, lines):
    """Whatever the portions in which a log arrives, its series are those that an import of the whole gives."""
    path = tmp_path / "log"
    path.write_text("\n".join(lines[:3]) + "\n")
    seen = Followed(path, [append(path, line + "\n") for line in lines[3:]], form)
    (whole,) = formats.FORMATS[form].read_all(str(path))
    assert seen.starts == 1
    for name, series in whole.columns.items():
        assert seen.points(name) == list(zip(series.step.tolist(), series.value.tolist(), strict=True)), name


def test_event_file_of_a_writer_is_followed(tmp_path):
    """Each flush of TensorBoard's own writer gives its values."""
    writer = pytest.importorskip("tensorboard.summary").Writer(str(tmp_path))

    def write(step):
        writer.add_scalar("loss", 1 / (step + 3), step)
        writer.flush()

    write(0)
    path = next(tmp_path.iterdir())
    seen = Followed(path, [lambda step=step: write(step) for step in range(1, 30)], "tfevents")
    writer.close()
    assert seen.points("loss") == [(step, float(np.float32(1 / (step + 3)))) for step in range(30)]
    assert len([what for what in seen.told if what.runs]) == 30


def test_scan_finds_sources_as_they_appear(tmp_path):
    """A folder gives each source once: when it appears, and when an empty file gets a format."""
    scan = FolderScan(str(tmp_path))
    assert scan.look() == []
    (tmp_path / "a.jsonl").write_text(rows(0))
    (tmp_path / "b.jsonl").touch()
    assert [one.path for one in scan.look()] == [str(tmp_path / "a.jsonl")]
    assert scan.look() == []
    (tmp_path / "b.jsonl").write_text(rows(0))
    assert [one.path for one in scan.look()] == [str(tmp_path / "b.jsonl")]


def test_scan_passes_over_runs_of_ours(tmp_path):
    """The folder of the runs may lie inside the one that is followed: its files are not taken for sources."""
    run = tmp_path / "stepscope-runs" / "p" / "r"
    for name in ("nodes", "tail", "events"):
        (run / name).mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "events" / "n-0.jsonl").write_text(rows(0, 1))
    assert FolderScan(str(tmp_path)).look() == []


def test_scan_groups_the_files_of_one_run(tmp_path):
    """Event files in one folder are one run, and so are the checkpoints of a trainer."""
    state = json.dumps({"log_history": [{"step": 1, "loss": 1.0}], "global_step": 1})
    for name in ("checkpoint-1", "checkpoint-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(state)
    assert {one.group for one in FolderScan(str(tmp_path)).look()} == {str(tmp_path)}


def test_scan_says_why_there_is_nothing(tmp_path):
    """A missing, an empty and an unknown file each have their sentence."""
    path = tmp_path / "log"
    scan = FolderScan(str(path))
    texts = []
    for act in (lambda: None, path.touch, append(path, "hello\n")):
        act()
        scan.look()
        texts.append(scan.problem)
    assert texts[0] == "nothing is there"
    assert texts[1] == "it is empty so far"
    assert "no format" in texts[2]


@pytest.mark.processes
def test_child_tells_what_is_new_and_ends_when_asked(tmp_path):
    """The confined child hands over points through its pipe, and ends with the last ones."""
    path = tmp_path / "metrics.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("step", "loss"), *((at, at / 3) for at in range(1000))])
    child = TailProcess(str(path), "csv")
    child.ask_to_end()
    told = everything(child)
    child.close()
    assert told[-1].is_over
    values = [value for what in told for run in what.runs for value in run.columns["loss"].value.tolist()]
    assert values == [at / 3 for at in range(1000)]


@pytest.mark.processes
def test_child_that_fails_says_why(tmp_path):
    """A reader's error arrives as the usual sentence."""
    path = tmp_path / "log"
    path.write_text("step,step\n1,2\n")
    child = TailProcess(str(path), "csv")
    child.ask_to_end()
    with pytest.raises(StepscopeError, match="does not name each column once"):
        everything(child)
    child.close()


def everything(child):
    told = []
    while not child.is_over:
        told += child.handed_over()
    return told
