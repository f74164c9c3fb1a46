"""`stepscope logs`: what the ranks of a run printed."""

from __future__ import annotations

import json
import re

import pytest

from stepscope.cli.main import main
from stepscope.core.console_line import ConsoleLine
from stepscope.core.errors import UsageError
from stepscope.sources.console_range import moment_of
from stepscope.store.console_segments import ConsoleWriterName, LostLines, encode_record, segment_path
from stepscope.store.layout import RunFolder
from stepscope.store.reader import Past
from tests.exporters.recorded import make_run, points_of, seal_points

BASE = 1_700_000_000.0


def say(folder, rank, *texts, attempt=0, node="host.1", start=0.0, is_open=False):
    """Write lines of a rank, one per second."""
    path = segment_path(folder.path, ConsoleWriterName(node, attempt, rank), 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for number, text in enumerate(texts):
            time = BASE + start + number
            file.write(encode_record(ConsoleLine(time, rank, attempt, node, number, "out", text, is_open)))


@pytest.fixture
def folder(tmp_path):
    """A run with three steps."""
    made = make_run(tmp_path)
    seal_points(made, points_of({"step_seconds": [0.5, 0.5, 0.5]}))
    return made


@pytest.fixture
def logs(folder, capsys):
    """Run `stepscope logs` and return its exit code, its lines and its errors."""

    def call(*arguments):
        code = main(["logs", str(folder.path), *arguments])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return call


def test_a_single_rank_is_printed_as_it_was(folder, logs):
    """One rank needs no prefix; colours are left out where there is no terminal, and an open line comes last."""
    say(folder, 0, "one", "\x1b[31mtwo\x1b[0m")
    say(folder, 0, "bar 50%", attempt=1, start=-5, is_open=True)
    assert logs() == (0, ["one", "two", "bar 50%"], "")
    assert logs("--last", "1") == (0, ["two"], "")
    assert logs("--attempt", "1")[1] == ["bar 50%"]


def test_several_ranks_have_time_rank_and_step_before_each_line(folder, logs):
    """Lines of several ranks say when, who and at which step."""
    say(folder, 0, "zero")
    say(folder, 12, "twelve", start=0.5)
    first, second = logs()[1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  rank 0( +step \d+)? \| zero", first)
    assert second.endswith("| twelve")
    assert logs("--rank", "10-12")[1][0].endswith("rank 12 | twelve")
    assert logs("--rank", "12")[1] == ["twelve"]
    assert logs("--rank", "12", "--prefix")[1][0].endswith("| twelve")


def test_lines_are_searched(folder, logs):
    """`--grep` and `--errors` choose lines by their text."""
    say(folder, 0, "loss 1", "ValueError: no", "loss nan")
    assert logs("--grep", "LOSS")[1] == ["loss 1", "loss nan"]
    assert logs("--grep", "/loss (nan|inf)/")[1] == ["loss nan"]
    assert logs("--errors")[1] == ["ValueError: no"]
    assert logs("--stream", "err")[1] == []
    assert logs("--since", "2023-11-14T22:13:21Z", "--until", "2023-11-14T22:13:21Z")[1] == ["ValueError: no"]


def test_json_has_every_fact(folder, logs):
    """`--json` prints the lines with all they have, and what is missing."""
    say(folder, 3, "one")
    facts = json.loads("\n".join(logs("--json")[1]))
    (line,) = facts["lines"]
    assert (line["rank"], line["text"], line["time"]) == (3, "one", BASE)
    assert (facts["dropped"], facts["problems"], facts["more"]) == (0, [], False)


def test_follow_ends_with_the_run(folder, logs):
    """A run that has ended is printed from its last lines, and that is all; JSON has an object per line."""
    say(folder, 0, *map(str, range(20)))
    folder.path.joinpath("nodes").mkdir(exist_ok=True)
    from stepscope.store.states import NodeState, RankState

    NodeState("host.1", 0, ended=True, ranks={0: RankState("finished", started=1, ended=2)}).save(folder)
    assert logs("--follow")[1] == [str(number) for number in range(10, 20)]
    assert [json.loads(line)["text"] for line in logs("--follow", "--json", "--last", "2")[1]] == ["18", "19"]


def test_nothing_to_print_is_said(folder, logs):
    """A rank without lines is an error that names those with some; a search without a hit is a sentence."""
    say(folder, 0, "a")
    say(folder, 2, "b")
    code, _, err = logs("--rank", "7")
    assert code == 1
    assert "cannot print the lines of rank 7: none were kept; lines were kept of ranks 0 and 2" in err
    assert logs("--grep", "owl") == (0, [], "stepscope: no line fits these options\n")


def test_a_run_without_lines_says_how_to_get_some(logs):
    """The error of a run without consoles names the command and the setting."""
    code, lines, err = logs()
    assert (code, lines) == (1, [])
    assert re.match("stepscope: cannot print the lines of run .*: none were kept; start it with `stepscope run`", err)


@pytest.mark.parametrize("words", [["--rank", "x"], ["--rank", "5-3"], ["--last", "0"]])
def test_wrong_options_are_refused(logs, words):
    """Ranks and numbers that are none are an error of usage."""
    with pytest.raises(SystemExit, match="2"):
        logs(*words)


def test_a_moment_is_a_step_an_age_or_a_time(folder):
    """Steps, ages and times become seconds since 1970; anything else is refused."""
    past = Past(RunFolder(folder.path))
    times = past.series("step_seconds").time
    assert moment_of(past, "1", is_end=False) == pytest.approx(times[1] - 0.5)
    assert moment_of(past, "1", is_end=True) == pytest.approx(times[1])
    assert moment_of(past, "10m", is_end=False, now=1000.0) == 400.0
    assert moment_of(past, "2023-11-14T22:13:20+00:00", is_end=False) == BASE
    for wrong in ("99", "yesterday"):
        with pytest.raises(UsageError, match="cannot "):
            moment_of(past, wrong, is_end=True)


def test_the_console_is_exported_as_text(folder, tmp_path, capsys):
    """`stepscope export --format console` writes time, rank and text of every line."""
    say(folder, 3, "one", "\x1b[31mtwo")
    assert main(["export", str(folder.path), "--format", "console"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["2023-11-14T22:13:20Z rank 3 | one", "2023-11-14T22:13:21Z rank 3 | two"]


def test_a_part_of_the_lines_tells_only_of_a_part_of_the_losses(folder, logs):
    """How many lines are missing is exact if all were read; else there may be more."""
    path = segment_path(folder.path, ConsoleWriterName("host.1", 0, 0), 0)
    path.parent.mkdir(parents=True)
    lost = [encode_record(LostLines(BASE + at, at, 3, "too fast")) for at in (0, 4)]
    said = [encode_record(ConsoleLine(BASE + at, 0, 0, "host.1", at, "out", "line")) for at in (3, 7)]
    path.write_bytes(lost[0] + said[0] + lost[1] + said[1])
    assert "stepscope: 6 lines of these ranks were not kept: too many for" in logs()[2]
    assert re.search("stepscope: at least [36] lines of these ranks were not kept", logs("--last", "1")[2])
