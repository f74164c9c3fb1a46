from __future__ import annotations

import math

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.core.ring import NO_STEP
from stepscope.importers import formats
from stepscope.importers.logs import lightning_csv


def read(tmp_path, text, name="metrics.csv"):
    path = tmp_path / name
    path.write_text(text)
    return lightning_csv.FORMAT.read(str(path))


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


def table(header, *rows):
    return header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)


@pytest.mark.parametrize("written", ["{}", "cuda:{}", "GPU {}"])
@pytest.mark.parametrize("apart", [0.0, 0.01])
def test_the_cards_of_a_table_are_series_of_their_own(tmp_path, written, apart):
    """A column `gpu` that names the card of each row: at equal times, or at times of their own in turn."""
    rows = [(at + apart * gpu, written.format(gpu), 50 + gpu) for at in range(100, 110) for gpu in range(4)]
    run = read(tmp_path, table("time,gpu,util", *rows))
    assert run.names() == [f"gpu/{gpu}/util" for gpu in range(4)]
    assert run.series("gpu/2/util").value.tolist() == [52.0] * 10
    assert run.notes == ("its column gpu says whose values a row has: they are gpu/<gpu>/…",)


@pytest.mark.parametrize("turn", [[97, 98, 99], [50, 87, 62, 99, 71], [0, 1]])
def test_a_utilisation_named_gpu_stays_a_metric(tmp_path, turn):
    """A row a step has one owner, whatever its column `gpu` holds."""
    run = read(tmp_path, table("step,loss,gpu", *((at, 1.5, turn[at % len(turn)]) for at in range(40))))
    assert run.names() == ["gpu", "loss"]
    assert run.notes == ()


@pytest.mark.parametrize(
    ("header", "rows", "names", "ranks"),
    [
        ("step,rank,host,local_rank,loss", [(0, "a", 0), (1, "a", 1), (2, "b", 0)], ["local_rank", "loss"], {0, 1, 2}),
        ("step,worker,loss", [(0,), (1,)], ["loss"], {0, 1}),
        ("step,host,loss", [("a",), ("b",)], ["host/a/loss", "host/b/loss"], {0}),
        ("step,node,device,loss", [("a", 0), ("a", 1), ("b", 0)], ["node/a/gpu/0/loss", "node/a/gpu/1/loss"], {0}),
    ],
)
def test_other_columns_that_say_whose_a_row_is(tmp_path, header, rows, names, ranks):
    """As few columns as tell the rows of a step apart: a host that follows from the rank splits nothing."""
    run = read(tmp_path, table(header, *((step, *row, step + 0.5) for step in range(20) for row in rows)))
    assert run.names()[: len(names)] == names
    assert {rank for name in run.names() for rank in run.series(name).rank.tolist()} == ranks
    assert all(len(run.series(name)) <= 20 * max(1, len(ranks)) for name in run.names())


def test_two_columns_in_turn_are_both_needed(tmp_path):
    """Cards of two hosts, each row at a time of its own."""
    turn = [(host, gpu) for host in "ab" for gpu in (0, 1)]
    rows = [(100 + at + 0.1 * place, *turn[place], place) for at in range(10) for place in range(4)]
    run = read(tmp_path, table("time,node,gpu,util", *rows))
    assert run.names() == [f"node/{host}/gpu/{gpu}/util" for host, gpu in turn]


def test_training_and_validation_of_one_column_are_told_apart(tmp_path):
    """`mode` says which loss a row has; the same text in all rows is a fact."""
    rows = [(at, "val" if at % 5 == 4 else "train", "h1", at) for at in range(20)]
    run = read(tmp_path, table("step,mode,host,loss", *rows))
    assert run.names() == ["loss", "val/loss"]
    assert run.series("val/loss").step.tolist() == [4, 9, 14, 19]
    assert run.facts == {"host": "h1", "names": {"loss": "train/loss"}}


def test_a_column_of_text_is_noted(tmp_path):
    """Nothing is dropped in silence: a text that changes is named in the notes."""
    run = read(tmp_path, table("step,loss,comment", (1, 0.5, "a"), (2, 0.25, "b")))
    assert run.notes == ("text, left out: comment (2 values)",)


@pytest.mark.parametrize(("text", "found"), [("lr: 0.1\nbatch: 8\n", {"lr": 0.1, "batch": 8}), ("a: [", None)])
def test_hyperparameters_beside_a_table_are_its_configuration(tmp_path, text, found):
    """Lightning writes hparams.yaml beside metrics.csv; one that is damaged is left out with a note."""
    (tmp_path / "hparams.yaml").write_text(text)
    (tmp_path / "metrics.csv").write_text("step,loss\n1,0.5\n")
    [run] = formats.read(str(tmp_path / "metrics.csv"))
    assert run.facts.get("config") == found
    assert bool(run.notes) == (found is None)
