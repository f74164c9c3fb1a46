from __future__ import annotations

import math

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.core.ring import NO_STEP
from stepscope.importers import formats, lightning_csv


def read(tmp_path, text, name="metrics.csv"):
    path = tmp_path / name
    path.write_text(text)
    return lightning_csv.read(str(path))


def test_an_empty_cell_is_absent(tmp_path):
    """Lightning writes training and validation to rows of their own."""
    run = read(tmp_path, "epoch,step,train_loss,val_loss\n0,9,0.5,\n0,10,,nan\n1,19,inf,\n")
    assert run.series("loss").step.tolist() == [9, 19]
    assert run.series("loss").value.tolist() == [0.5, math.inf]
    assert run.series("val_loss").step.tolist() == [10]
    assert math.isnan(run.series("val_loss").value[0])
    assert run.facts["names"] == {"loss": "train_loss"}


def test_a_download_of_tensorboard_is_named_after_its_file(tmp_path):
    """Its one column is called Value; the tag stands in the file's name."""
    run = read(tmp_path, "Wall time,Step,Value\n1700000000.5,1,0.25\n", "run-a-tag-train_loss.csv")
    assert run.names() == ["loss"]
    assert run.series("loss").time.tolist() == [1700000000.5]


@pytest.mark.parametrize(
    ("text", "value"),
    [("step;loss\n1;0,25\n", 0.25), ("step\tloss\n1\t0.25\n", 0.25), ('"step","loss"\n1,"1,024"\n', 1024.0)],
)
def test_other_separators(text, value, tmp_path):
    """Tabs and semicolons separate too; with semicolons the comma is decimal."""
    (tmp_path / "x").write_text(text)
    (run,) = formats.read(str(tmp_path / "x"))
    assert run.series("loss").value.tolist() == [value]


def test_a_table_of_times_has_no_steps(tmp_path):
    """Telemetry belongs to no step; times without a zone are UTC."""
    run = read(tmp_path, "timestamp,value\n2014-04-01 00:00:00,20.5\n", "cpu.csv")
    assert run.series("cpu").step.tolist() == [NO_STEP]
    assert run.series("cpu").time.tolist() == [1396310400.0]


def test_rows_that_do_not_fit_are_counted(tmp_path):
    """A cut row, or one with a comma too many, is left out and said."""
    run = read(tmp_path, "step,loss\n1,2\n2\n3,4,5\n4,5\n")
    assert run.series("loss").step.tolist() == [1, 4]
    assert run.notes == ("rows with another number of cells, left out (2 times)",)
    with pytest.raises(StepscopeError, match="each column once"):
        read(tmp_path, "step,loss,loss\n1,2,3\n")
    with pytest.raises(StepscopeError, match="no numbers"):
        read(tmp_path, "step,loss\nx,y\n")
