from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path

import pytest

from stepscope.store.console import ConsoleAnswer
from stepscope.tui.frame import ViewOptions, length
from stepscope.tui.screen import DRAWN, draw
from stepscope.tui.theme import style_of
from stepscope.views.terminal import TerminalRank, TerminalScene
from stepscope.views.terminal_ranks import lateness
from tests.tui.scenes import alert, machine_scene, printed, run_scene, sink

SNAPSHOTS = Path(__file__).parent / "snapshots"
SIZES = ((80, 24), (120, 36), (200, 55))


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    """Let clocks show UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def text_of(frame):
    return "\n".join("".join(text for text, _ in line) for line in frame.lines) + "\n"


@pytest.mark.promise("S2-010", "S2-012")
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("view", [*DRAWN, "machine alone"])
def test_screens_look_as_they_were_approved(view, size):
    """Every view at a small, a usual and a wide size is the one that was looked at; LOOKS_ARE_RENEWED=1 renews."""
    scene = machine_scene() if view == "machine alone" else run_scene()
    found = text_of(draw(scene, ViewOptions(view="machine" if view == "machine alone" else view), *size))
    path = SNAPSHOTS / f"{view.replace(' ', '-')}-{size[0]}x{size[1]}.txt"
    if os.environ.get("LOOKS_ARE_RENEWED"):
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("size", [(40, 10), (41, 11), (60, 17), (80, 24), (133, 41), (400, 100)])
@pytest.mark.parametrize("view", list(DRAWN))
def test_screens_fill_exactly_the_room_there_is(view, size):
    """Whatever the size, there are as many lines as rows and each is as wide as the terminal."""
    for scene in (run_scene(), run_scene(1, 0), run_scene(700, 16), TerminalScene("empty", is_run=True, loading=True)):
        frame = draw(scene, ViewOptions(view=view), *size)
        assert len(frame.lines) == size[1]
        assert {length(line) for line in frame.lines} == {size[0]}


@pytest.mark.parametrize("size", [(10, 3), (39, 24), (80, 9)])
def test_a_window_too_small_says_so(size):
    """In a window that is too small for anything the smallest size stands."""
    frame = draw(run_scene(), ViewOptions(), *size)
    assert len(frame.lines) == size[1]
    assert "40x10"[: size[0]] in text_of(frame)


def test_the_worst_alert_is_visible_at_every_size():
    """An alert that fires stands on the overview of the smallest screen too."""
    for size in SIZES:
        assert "loss is NaN since step 590" in text_of(draw(run_scene(), ViewOptions(), *size))


def test_no_text_of_a_run_acts_on_the_terminal():
    """Control characters and escapes in names and texts are replaced."""
    scene = run_scene()
    evil = "a\x1b[2Jb\x07c\u202ed\r\ne"
    scene.title = scene.project = evil
    scene.curves["loss"].name = evil
    scene.alerts = [alert(evil, "critical", "firing", evil, remedy=evil, evidence={evil: evil})]
    scene.events = [{"time": 0.0, "kind": evil, "step": 1, "text": evil}]
    scene.ranks[0].state = scene.ranks[0].node = scene.nodes[-1].name = evil
    scene.console.take(ConsoleAnswer([printed(evil, number=99)], "", 0, []))
    for view in DRAWN:
        shown = text_of(draw(scene, ViewOptions(view=view), 120, 40))
        assert not set(shown) & {"\x1b", "\x07", "\u202e", "\r"}


def test_wide_characters_keep_their_columns():
    """Names of wide characters are measured by columns."""
    scene = run_scene()
    scene.title = "训练" * 30
    assert {length(line) for line in draw(scene, ViewOptions(), 80, 24).lines} == {80}


def test_a_slow_rank_has_another_colour():
    """The heat map shows the rank whose own time is 40 % of a step longer in another colour than the others."""
    frame = draw(run_scene(), ViewOptions(view="ranks"), 120, 36)
    rows = [line for line in frame.lines if any(text.startswith("■") and len(text) == 1 for text, _ in line)]
    colours = [{style for text, style in row if text == "■" and style.startswith("heat")} for row in rows]
    assert {"heat4"} in colours
    assert {"heat0"} in colours


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
def test_a_hang_is_explained_where_ranks_and_alerts_are(size):
    """The ranks begin with its verdict; the alert has the evidence of each source below it, and what to do."""
    scene = run_scene()
    text = "Rank 2 never entered all_reduce, in which ranks 0, 1 and 3 wait: it sleeps at data.py:41."
    shows = {"stacks": ["ranks 0, 1 and 3 wait in all_reduce", "rank 2 sleeps"], "flight_recorder": ["3 ranks wait"]}
    facts = {"verdict": "never_arrived", "sources": shows}
    scene.alerts = [alert("hang", "critical", "firing", text, remedy="look at the line", evidence=facts)]
    ranks = [" ".join(line.split()) for line in text_of(draw(scene, ViewOptions(view="ranks"), *size)).splitlines()]
    assert " ".join(ranks[2:4]).startswith(text)
    alerts = text_of(draw(scene, ViewOptions(view="alerts"), *size))
    for said in ("stacks: ranks 0, 1 and 3 wait", "rank 2 sleeps", "flight recorder: 3 ranks wait", "→ look at"):
        assert said in alerts


def test_only_the_chosen_gpus_are_shown():
    """`--gpu 1` leaves the others out."""
    shown = text_of(draw(machine_scene(), ViewOptions(view="machine", gpus=(1,)), 100, 30))
    assert "gpu 1" in shown
    assert "gpu 0" not in shown


def test_thresholds_have_colours():
    """A hot GPU is bad, an idle one of a live run worth a warning."""
    spans = [span for line in draw(run_scene(), ViewOptions(view="machine"), 120, 36).lines for span in line]
    assert (" 90 °C", "bad") in spans
    assert ("  20 % ", "warn") in spans


def test_every_style_is_one_that_a_terminal_has():
    """What views call a colour can be drawn, also where two ranks share a character."""
    for scene in (run_scene(), run_scene(40), run_scene(700, 16), machine_scene()):
        for view in DRAWN:
            for line in draw(scene, ViewOptions(view=view), 120, 40).lines:
                assert all(style_of(style) is not None for _, style in line)


def test_the_rank_that_the_others_wait_for_stands_first():
    """Ranks that meet in every step end it together: who is late is told by its own time, as `diagnose` tells it."""
    own = {0: 0.03, 1: 0.05, 2: 0.03}
    ranks = []
    for number, seconds in own.items():
        rank = TerminalRank(number, "running")
        rank.steps.extend([0.1 + 0.001 * (number == 0)] * 20)
        rank.phases = {"forward": deque([seconds] * 20), "backward": deque([0.1 - seconds] * 20)}
        ranks.append(rank)
    late = lateness(ranks)
    assert max(late, key=lambda rank: late[rank]) == 1
    assert late[1] == pytest.approx((0.05, 0.0195))
    for rank in ranks:
        rank.phases = {}
    assert max(lateness(ranks), key=lambda rank: lateness(ranks)[rank]) == 0


@pytest.mark.parametrize("size", [(40, 10), (60, 17), (80, 24), (133, 41), (400, 100)])
@pytest.mark.parametrize("view", ["overview", "machine"])
def test_screens_with_sinks_fill_exactly_the_room(view, size):
    """Any number of sinks, with any text, leaves the screen as large as the terminal."""
    scene = run_scene()
    odd = {"why": "数据\x1b[31m " * 200, "behind_rows": 10**12, "behind_seconds": 1e9, "refused_rows": 10**9}
    scene.sinks = [sink(f"sink {number} " * 9, "denied", **odd) for number in range(30)]
    frame = draw(scene, ViewOptions(view=view), *size)
    assert len(frame.lines) == size[1]
    assert {length(line) for line in frame.lines} == {size[0]}
    assert "\x1b" not in text_of(frame)


def test_the_sink_in_trouble_comes_first():
    """The overview names the worst sink and why; the machine view has all of them."""
    scene = run_scene()
    late = {"behind_rows": 41_124, "behind_seconds": 754.0, "why": "the connection was refused"}
    rests = {"behind_rows": 9, "behind_seconds": 4.0}
    scene.sinks = [sink("mlflow", **rests), sink("otlp", "not answering", **late), sink("wandb", "done")]
    shown = text_of(draw(scene, ViewOptions(), 160, 40))
    line = next(row for row in shown.splitlines() if row.startswith(" sinks"))
    found = " sinks  otlp not answering 12 min 34 s behind  mlflow keeping up  wandb done   the connection was refused"
    assert line.rstrip() == found
    shown = text_of(draw(scene, ViewOptions(view="machine"), 160, 40))
    assert "41 124 rows, 12 min 34 s" in shown
    assert f"mlflow         keeping up    {'9 rows, 4 s':>24}      12 345       0" in shown


def test_no_sinks_no_line():
    """A run without sinks has no word about them."""
    for view in ("overview", "machine"):
        assert "sink" not in text_of(draw(run_scene(), ViewOptions(view=view), 120, 36))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_hundreds_of_ranks_are_a_line_for_each_node(size):
    """With many ranks the node of the worst stands first, and the phases of that rank beside the median's."""
    scene = run_scene(512)
    for number, rank in scene.ranks.items():
        rank.node = f"node-{number // 8}"
    scene.ranks[2].phases["data"] = deque([0.02] * 64)
    scene.ranks[2].steps = deque([0.25] * 64, maxlen=64)
    scene.ranks[77].phases["data"] = deque([0.12] * 64)
    scene.ranks[77].steps = deque([0.35] * 64, maxlen=64)
    shown = text_of(draw(scene, ViewOptions(view="ranks"), *size)).splitlines()
    assert "512 ranks on 64 nodes" in shown[2]
    assert "most of it in data" in shown[2] or size[0] == 80
    assert any("node-9 " in line and " 77 " in line for line in shown)
    assert any("rank 77" in line for line in shown[3:])
    lower = text_of(draw(scene, ViewOptions(view="ranks", line=63), *size))
    assert "of 64" in lower
    assert "rank 77" in lower.splitlines()[2]
    assert "rank 77 node" not in lower


def test_ranks_are_shown_one_by_one_on_demand():
    """`g` shows each rank although there are many; what ended comes first."""
    scene = run_scene(64)
    for number, rank in scene.ranks.items():
        rank.node = f"node-{number // 8}"
    scene.ranks[50].state = "killed"
    shown = text_of(draw(scene, ViewOptions(view="ranks", grouped=False), 120, 40)).splitlines()
    assert "rank 50 is killed" in shown[2]
    assert "50 killed" in shown[5]


def test_the_cause_of_a_hang_stands_first_though_all_ranks_hang():
    """In a hang every rank stands still: the one that the verdict names is first, and the sentence says so."""
    scene = run_scene(8)
    for rank in scene.ranks.values():
        rank.state = "hung"
    assert "all are hung" in text_of(draw(scene, ViewOptions(view="ranks"), 120, 40)).splitlines()[2]
    scene.ranks[5].blame = "causes the hang"
    shown = text_of(draw(scene, ViewOptions(view="ranks"), 120, 40)).splitlines()
    assert "rank 5 on node-a causes the hang" in shown[2]
    assert "5 hung" in shown[5]
