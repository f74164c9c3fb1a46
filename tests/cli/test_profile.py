from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from stepscope.cli.commands import profile
from stepscope.cli.commands.checks import LiveRing
from stepscope.cli.main import main
from stepscope.core.errors import StepscopeError
from stepscope.core.places import find_places
from tests.integration.processes import Bench, until

pytestmark = pytest.mark.processes

LOOP = """
import sys
import time
from pathlib import Path
import stepscope

torch = None
if "torch" in sys.argv:
    import torch
run = stepscope.init(project="live", run_id="live")
print(run.path, flush=True)
end = time.monotonic() + 600
while not Path("stop").exists() and time.monotonic() < end:
    if "stuck" in sys.argv:
        time.sleep(0.01)
    elif "log" in sys.argv:
        run.log(loss=1.0)
        time.sleep(0.01)
    else:
        with run.step(samples=1):
            if torch is not None:
                torch.nn.functional.linear(torch.ones(64, 64), torch.ones(64, 64))
            time.sleep(0.005)
run.finish()
"""


@pytest.fixture
def bench(clean_environment, tmp_path):
    made = Bench(tmp_path)
    yield made
    made.close()


def live(bench, *words):
    trainer = bench.start(LOOP, *words)
    path = Path(trainer.line())
    until(lambda: list((path / "nodes").glob("*.json")), "the run is watched")
    return trainer, path


@pytest.mark.slow
@pytest.mark.promise("S3-023", "S3-024")
def test_live_run_is_profiled_from_outside(bench, capsys):
    """The command has a live run profiled, tells the slowest operations and where the trace is; training goes on."""
    pytest.importorskip("torch", reason="needs torch; pip install torch")
    trainer, path = live(bench, "torch")
    assert main(["profile", "live", "--steps", "3", "--warmup", "1", "--top", "2"]) == 0
    out, err = capsys.readouterr()
    assert "Profiler: Top 2 slowest operations:" in out
    assert "% of time)" in out
    assert "has been asked" in err
    [trace] = (path / "profiles").iterdir()
    assert str(trace) in out
    assert json.loads(trace.read_text())["traceEvents"]
    assert main(["profile", "live", "--steps", "2", "--no-trace", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["profile"]["steps"], facts["profile"]["trace"]) == (2, None)
    (bench.folder / "stop").touch()
    assert trainer.wait() == 0
    assert trainer.complaints() == []


def test_process_without_torch_says_so(bench, capsys):
    """A process that has not loaded torch answers at once that it cannot."""
    live(bench)
    assert main(["profile", "live", "--timeout", "120"]) == 1
    assert "cannot profile run live: torch is not loaded in this process; import it first" in capsys.readouterr().err


def test_process_that_records_nothing_is_told_apart(bench, capsys):
    """A process that records nothing does not take the request: the command says so and withdraws it."""
    live(bench, "stuck")
    assert main(["profile", "live", "--timeout", "0.5"]) == 1
    assert "has not taken the request" in capsys.readouterr().err
    assert not [path for root in find_places().roots() for path in root.rglob("*.request")]


@pytest.mark.slow
def test_process_that_ends_no_step_is_told_apart(bench, capsys):
    """A process that logs and ends no step takes the request: the command says what is missing."""
    pytest.importorskip("torch", reason="needs torch; pip install torch")
    live(bench, "log", "torch")
    assert main(["profile", "live", "--timeout", "15"]) == 1
    assert "has ended no step" in capsys.readouterr().err


def test_run_that_has_ended_cannot_be_profiled(bench, capsys):
    """A run that has ended is refused, with its state."""
    (bench.folder / "stop").touch()
    assert bench.start(LOOP).wait() == 0
    bench.quiet()
    assert main(["profile", "live"]) == 1
    assert "cannot profile run live: it is finished" in capsys.readouterr().err


def test_other_rank_is_named(bench, capsys):
    """A rank that is not here is refused, with those that are."""
    live(bench, "stuck")
    assert main(["profile", "live", "--rank", "3"]) == 1
    assert "rank 3 is not on this machine; choose one that is: --rank 0" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--steps", "0"], ["--steps", "many"], ["--warmup", "-1"], ["--rank", "x"]])
def test_wrong_numbers_are_wrong_usage(words):
    """A number that makes no sense is wrong usage."""
    with pytest.raises(SystemExit) as stop:
        main(["profile", "latest", *words])
    assert stop.value.code == 2


class Told:
    """A run whose events and state a test sets."""

    def __init__(self, *events, state="running", path="/nowhere"):
        self.id, self.state, self.path = "r", state, Path(path)
        self._events = list(events)

    def events(self):
        return self._events


TARGET = LiveRing(Path("/x.ring"), "/nowhere", 0, 42, trainer=True, consumer=True)


def asked(past, terminal=False, timeout=10.0):
    moments = iter(range(100))
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    try:
        result = profile.wait(
            past, TARGET, "q", timeout, clock=lambda: next(moments), sleep=lambda seconds: None, stream=stream
        )
    except StepscopeError as error:
        return str(error), stream.getvalue()
    return result, stream.getvalue()


def test_answers_to_others_are_not_ours():
    """Only the answer to this very request counts."""
    mine = {"kind": "profile", "request": "q", "steps": 2}
    assert asked(Told({"kind": "profile", "request": "other"}, mine))[0] == mine
    assert "has not taken the request" in asked(Told({"kind": "profile", "request": "other"}))[0]


def test_silence_is_told_by_how_far_it_came():
    """A request that was taken and not begun, and one that is still under way, are told apart."""
    taken, begun = {"kind": "profile_requested", "request": "q"}, {"kind": "profile_started", "request": "q"}
    assert "has ended no step" in asked(Told(taken))[0]
    assert "still at it" in asked(Told(taken, begun))[0]


def test_end_of_the_run_ends_the_wait():
    """A run that ends meanwhile ends the wait."""
    assert "it is killed now" in asked(Told(state="killed"))[0]


def test_terminal_has_one_line_and_a_pipe_few():
    """On a terminal one line is written anew and cleared; in a pipe each state is one line."""
    assert asked(Told(), terminal=True)[1].count("\n") == 0
    assert asked(Told(), terminal=True)[1].endswith("\r\x1b[K")
    assert asked(Told())[1] == "rank 0 (pid 42) has been asked …\n"


def test_lines_are_free_of_control_characters():
    """Names that come from a run are printed without control characters."""
    facts = {
        "steps": 2,
        "seconds": 1.0,
        "first_step": 3,
        "last_step": 4,
        "operations": [{"name": "evil\x1b[31m", "calls": 2, "seconds": 0.5, "share": 0.352}],
        "operation_seconds": 0.7,
        "clock": "host",
        "notes": ["it has 2 of 5 steps"],
        "trace": "/r/t.json",
        "trace_bytes": 2048,
        "rank": 1,
    }
    text = "\n".join(profile.lines(facts))
    assert "\x1b" not in text
    assert text.startswith("2 steps (3 to 4) of rank 1 in 1 s, 500 ms each")
    assert "1. evil" in text
    assert "(35.2% of time)  2 calls, 500 ms" in text
