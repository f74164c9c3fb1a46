from __future__ import annotations

import json
import math

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.importers import formats
from stepscope.importers.logs import console_log, step_log
from tests.importers.foreign import SAMPLES, shared


def read(tmp_path, text):
    path = tmp_path / "log"
    path.write_text(text)
    (run,) = formats.read(str(path))
    assert run.format == "step_log"
    return run


@pytest.mark.slow
def test_real_repeats_have_the_time_that_their_authors_state():
    """The step times of each of 34 runs sum to its published training time."""
    folder = shared("modded-nanogpt-runs")
    truth = json.loads((folder / "ground_truth.json").read_text())
    for group, facts in truth.items():
        runs = formats.read(str(folder / group))
        assert len(runs) == facts["runs"]
        totals = [run.series("train_seconds").value[-1] for run in runs]
        assert sorted(totals) == pytest.approx(sorted(facts["train_time_s"]))
        summed = [run.series("step_seconds").value.sum() for run in runs]
        assert summed == pytest.approx(totals, abs=0.001)
        assert all(run.series("val_loss").value[-1] < 3.3 and run.facts["python"].startswith("3.12") for run in runs)


def test_a_log_with_train_loss_and_a_clock_that_starts_anew():
    """The clock of this program goes back once, after its warm-up: that step has no time."""
    run = step_log.FORMAT.read(str(shared("modded-nanogpt-runs/2024-10-10_Muon_with_train_loss.txt")))
    assert len(run.series("loss")) == 6200
    assert len(run.series("step_seconds")) == 6199
    assert run.series("step_seconds").value.min() >= 0
    assert run.facts["steps"] == 6200


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "step {} | loss: 3.25 | lr 1.5e-04 | norm: 0.5 | dt: 80.5ms | tok/sec: 1,024.5",
            {"learning_rate": 1.5e-4, "grad_norm": 0.5, "step_seconds": 0.0805, "tokens_per_second": 1024.5},
        ),
        (
            "[2024-01-01 10:00:00][INFO] - [iter {}] loss=3.25, lr=0.1, mem=1.5GiB",
            {"loss": 3.25, "learning_rate": 0.1, "mem_bytes": 1.5 * 2**30},
        ),
        (
            "\x1b[31mstep: {:2}  \x1b[32mloss:  3.2500  \x1b[39mtps: 5,000  mfu: 38.50%",
            {"loss": 3.25, "tokens_per_second": 5000, "mfu_ratio": 0.385},
        ),
        (
            "{{'loss': 3.25, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.{}}}",
            {"loss": 3.25, "learning_rate": 5e-5, "grad_norm": math.nan},
        ),
        ("Epoch 1, Step {}/100, train loss: 3.25", {"loss": 3.25}),
    ],
)
def test_lines_of_home_made_loops(line, expected, tmp_path):
    """A step, then names and numbers, in the forms that people print."""
    run = read(tmp_path, "noise\n" + "".join(line.format(step) + "\n" for step in range(3)))
    for name, value in expected.items():
        assert run.series(name).value.tolist() == pytest.approx([value] * 3, nan_ok=True), run.names()
        assert run.series(name).step.tolist() == [0, 1, 2]


def test_a_restart_is_a_new_attempt_and_no_step_time(tmp_path):
    """Steps that go back begin anew; no time is taken across the gap, and a step that is skipped shares its time."""
    lines = [(1, 100), (2, 200), (4, 600), (2, 150), (3, 300)]
    run = read(tmp_path, "".join(f"step:{step}/9 loss:1.0 train_time:{time}ms\n" for step, time in lines))
    assert run.series("loss").attempt.tolist() == [0, 0, 0, 1, 1]
    assert run.series("step_seconds").step.tolist() == [2, 4, 3]
    assert run.series("step_seconds").value.tolist() == pytest.approx([0.1, 0.2, 0.15])


def test_prose_is_no_log(tmp_path):
    """A text that speaks of steps is not one."""
    (tmp_path / "x").write_text("In step 2 we see that it works.\nstep 3: go on\nstep 4: stop, see page 5\n")
    assert formats.detect(str(tmp_path / "x")) is None
    with pytest.raises(StepscopeError, match="no line has a step"):
        step_log.FORMAT.read(str(tmp_path / "x"))


def test_real_grpo_logs_are_read():
    """Both debug logs: the table by step, and the figures below each step agree with it."""
    folder = shared("grpo-rookworld")
    for name, steps in (("manual_grpo_debug_log-250902-1324.log", 50), ("manual_grpo_debug_log-250902-1950.log", 1000)):
        run = console_log.FORMAT.read(str(folder / name))
        table = dict(
            zip(run.series("table/gradn").step.tolist(), run.series("table/gradn").value.tolist(), strict=True)
        )
        assert list(table) == list(range(1, steps + 1))
        norm = run.series("grad_norm")
        assert [table[step] for step in norm.step.tolist()] == norm.value.tolist()


def test_settings_before_the_first_step_are_facts(tmp_path):
    """A figure that stands before any step, or at one alone, is no metric."""
    path = tmp_path / "log"
    path.write_text("Learning rate: 1e-06\n" + SAMPLES["console_log"].decode() + "Final score: 3.5 (of 5)\n")
    run = console_log.FORMAT.read(str(path))
    assert run.facts["learning_rate"] == 1e-06
    assert run.names() == ["loss"]


def test_a_program_and_a_table_before_the_lines_are_passed_over(tmp_path):
    """Logs that open with their own source and nvidia-smi's table: only the lines are read, the card is a fact."""
    source = (
        'print0(f"step:{step}/{n} train_time:{1000*t:.0f}ms")\ndef f(G, steps=10, eps=1e-7): pass\nlr: float = 0.02\n'
    )
    table = "|   7  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |   0 |\n| N/A 29C P0 71W / 700W |\n"
    run = read(tmp_path, source * 2000 + table + SAMPLES["step_log"].decode())
    assert run.names() == ["loss", "step_avg_seconds", "step_seconds", "train_seconds"]
    assert run.facts == {"gpu": "NVIDIA H100 80GB HBM3", "gpus": 8, "steps": 9, "names": {"loss": "train_loss"}}
    assert read(tmp_path, "s:0 tel:10.9\ns:1 trl:2.5 lr:0.1 norm:0.5\n").series("loss").value.tolist() == [2.5]


def test_what_a_trainer_prints_behind_its_progress_bar_is_read(tmp_path):
    """A bar's carriage returns end a line; the rows have no step, so they are counted."""
    run = read(
        tmp_path,
        "  1%| | 1/99 [00:01<00:09,  1.1it/s]\r  2%| | 2/99 [00:02]{'loss': 2.5, 'epoch': 0.1}\n"
        "{'loss': '2.25', 'epoch': '0.2'}\n",
    )
    assert run.series("loss").value.tolist() == [2.5, 2.25]
    assert run.series("loss").step.tolist() == [0, 1]
    assert run.notes == ("its lines have no step: they were counted",)


PREFIXES = [
    "14:10:5{} | ",
    "14:10:5{} | INFO     | ",
    "2024-05-01 14:10:5{},123 - trainer - INFO - ",
    "2024-05-01T14:10:5{}Z INFO ",
    "[2024-05-01 14:10:5{}] ",
    "[2024-05-01 14:10:5{},123][__main__][INFO] - ",
    "I0501 14:10:5{}.123456 140 train.py:88] ",
    "INFO:root:",
    "[INFO|trainer.py:88] 2024-05-01 14:10:5{},123 >> ",
    "2024-05-01 14:10:5{}.123 | INFO     | __main__:main:42 - ",
    "(Worker pid=123, ip=10.0.0.1) ",
    "May 01 14:10:5{} host python[12]: ",
    "",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_figures_below_a_step_are_kept_behind_any_prefix(prefix, tmp_path):
    """A clock, date, level, file or process before a line takes neither its step nor its figures away."""
    text = ""
    for at in range(1, 5):
        for message in (f"Step {at}/9 loss: 1.5", f"  Mean reward: 0.{at}", f"KL divergence: 0.0{at} (low)"):
            text += prefix.format(at) + message + "\n"
    run = read(tmp_path, text)
    assert run.names() == ["kl_divergence", "loss", "mean_reward"]
    assert run.series("mean_reward").value.tolist() == [0.1, 0.2, 0.3, 0.4]
    assert run.series("kl_divergence").step.tolist() == [1, 2, 3, 4]
    assert run.notes == ()


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_report_without_a_row_of_its_step_is_read_behind_any_prefix(prefix, tmp_path):
    """The same for a report whose step stands alone in its line."""
    lines = (f"{prefix.format(at)}{text}\n" for at in (1, 2) for text in (f"STEP {at}", f"Reward: 0.{at}"))
    (tmp_path / "log").write_text("".join(lines))
    (run,) = formats.read(str(tmp_path / "log"))
    assert run.format == "console_log"
    assert run.series("reward").value.tolist() == [0.1, 0.2]


@pytest.mark.parametrize("prefix", ["[rank{}]: ", "{}: ", "[default{}]:", "14:10:55 | rank {} | ", "[rank {}] "])
def test_ranks_in_prefixes_are_ranks(prefix, tmp_path):
    """Interleaved lines of ranks are not one series, and a rank that is behind is no restart."""
    order = [(1, 0), (2, 0), (1, 1), (3, 0), (2, 1), (3, 1)]
    run = read(tmp_path, "".join(f"{prefix.format(rank)}step {step} loss: {step}.{rank}\n" for step, rank in order))
    loss = run.series("loss")
    assert [(step, rank) for step, rank in zip(loss.step.tolist(), loss.rank.tolist(), strict=True)] == order
    assert set(loss.attempt.tolist()) == {0}


def test_what_a_log_line_leaves_out_is_noted(tmp_path):
    """Figures without a step, of one step only, or told twice are named in the notes."""
    text = "".join(f"step {at} loss: 1.{at}\nRewards: mean=0.{at} std=0.1\nLoss: 1.{at}\n" for at in (1, 2, 3))
    run = read(tmp_path, text + "Final score: 3.5\n")
    assert run.names() == ["loss"]
    assert run.notes == (
        "figures in lines that have no step, left out: mean, std (6 values)",
        "figures that the line of their step tells too, left out: loss (3 values)",
        "figures of one step only, left out: final_score (1 value)",
    )


def test_a_list_of_names_and_numbers_needs_no_colons(tmp_path):
    """As nanoGPT prints: `iter 10: loss 3.2, time 80.5ms, mfu 38.50%`; prose does not become a log."""
    run = read(tmp_path, "".join(f"iter {at}: loss 3.2{at}, time 80.5ms, mfu 38.50%\n" for at in (1, 2)))
    assert run.series("loss").value.tolist() == [3.21, 3.22]
    assert run.series("time_seconds").value.tolist() == [0.0805] * 2
    assert run.series("mfu_ratio").value.tolist() == [0.385] * 2
    run = read(tmp_path, "step 1 loss 1.5 reward 0.25\nstep 2 loss 1.25 reward 0.5\n")
    assert run.series("reward").value.tolist() == [0.25, 0.5]
    (tmp_path / "x").write_text("step 4: see page 5\nstep 5: go back to 3, then to 7 of them\n")
    assert formats.detect(str(tmp_path / "x")) is None
