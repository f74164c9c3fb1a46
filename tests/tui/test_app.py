from __future__ import annotations

import asyncio
import csv
import json

import pytest

from stepscope.tui.app import TopApp
from stepscope.tui.feed import MachineFeed, SceneFeed
from tests.tui.scenes import machine_scene, run_scene


class Feed(SceneFeed):
    """A run that does not change; notes what is asked of it."""

    def __init__(self, scene=None):
        self.scene = scene or run_scene()
        self.asked = []
        self.closed = False

    def poll(self):
        self.asked.append("poll")

    def known(self):
        return [(name, "training") for name in (*self.scene.curves, "other/[metric]")]

    def show(self, names):
        self.asked.append(("show", names))

    def ask_diagnosis(self):
        self.asked.append("diagnose")

    def follow_console(self, rank):
        self.asked.append(("console", rank))
        self.scene.console.rank = rank

    def reset(self):
        self.asked.append("reset")

    def answered(self, facts, columns):
        raise AssertionError

    failed = answered

    def close(self):
        self.closed = True


async def drawn(pilot):
    """Wait until the dashboard is drawn: on a busy machine a pause ends before."""
    for _ in range(100):
        await pilot.pause()
        if pilot.app._canvas.frame.lines:
            return


def pressed(*keys, feed=None, size=(120, 36), folder=None, newer=None, options=None):
    """Run the dashboard, press keys one by one, and return it with its last screen."""

    async def go():
        app = TopApp(feed or Feed(), 3600.0, options, newer, folder)
        async with app.run_test(size=size) as pilot:
            await drawn(pilot)
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            text = "\n".join("".join(part for part, _ in line) for line in app._canvas.frame.lines)
            return app, text, len(app.screen_stack)

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("keys", "view"),
    [
        (["tab"], "metrics"),
        (["shift+tab"], "console"),
        (["3"], "machine"),
        (["5"], "alerts"),
        (["tab"] * 6, "overview"),
        (["4", "escape"], "overview"),
    ],
)
def test_keys_choose_the_view(keys, view):
    """Tab goes through the views, digits choose one, escape goes back."""
    app, _, _ = pressed(*keys)
    assert app.options.view == view


@pytest.mark.promise("S2-011")
def test_q_quits_and_lets_go():
    """`q` ends the dashboard, and what it followed is closed."""
    feed = Feed()
    app, _, _ = pressed("q", feed=feed)
    assert app.return_code == 0
    assert feed.closed


@pytest.mark.promise("S2-011")
def test_s_saves_what_is_shown_as_json_and_csv(tmp_path):
    """`s` writes both files; JSON has no NaN, and CSV no formula."""
    feed = Feed()
    feed.scene.curves["=cmd()"] = feed.scene.curves["loss"]
    _, text, _ = pressed("s", feed=feed, folder=tmp_path)
    made = {path.suffix: path for path in tmp_path.iterdir()}
    facts = json.loads(made[".json"].read_text())
    assert facts["metrics"]["loss"]["last"] is None
    assert facts["ranks"][2]["step_seconds"] == pytest.approx(0.35)
    rows = list(csv.DictReader(made[".csv"].read_text().splitlines()))
    assert {row["name"] for row in rows} >= {"loss", "'=cmd()", "cpu/usage_ratio"}
    assert sum(int(row["nonfinite"]) for row in rows if row["name"] == "loss") == 10
    assert "saved stepscope-top-20261115-120000-abcd" in text


def test_saving_where_nothing_can_be_written_is_said(tmp_path):
    """A folder that is not there is a note, not an end."""
    _, text, _ = pressed("s", folder=tmp_path / "absent")
    assert "cannot save" in text


@pytest.mark.promise("S2-011")
def test_r_resets_the_history():
    """`r` lets every graph begin anew."""
    feed = Feed()
    pressed("r", feed=feed)
    assert "reset" in feed.asked


def test_metrics_are_picked_by_typing():
    """`/` opens a list; typing narrows it, enter ticks, escape shows what is ticked."""
    feed = Feed()
    pressed("slash", "o", "t", "h", "e", "r", "enter", "escape", feed=feed)
    assert ("show", [*feed.scene.shown, "other/[metric]"]) in feed.asked


def test_keys_of_a_dialogue_are_its_own():
    """While metrics are picked, `q` and digits are letters of a name."""
    app, _, depth = pressed("slash", "q", "3")
    assert depth == 2
    assert app.options.view == "overview"


def test_help_opens_and_closes():
    """`?` shows the keys, escape goes back."""
    assert pressed("question_mark")[2] == 2
    assert pressed("question_mark", "escape")[2] == 1


def test_the_scale_changes():
    """`l` goes from the fitting scale to the logarithmic, the linear one and back."""
    assert [pressed(*["l"] * number)[0].options.log for number in (1, 2, 3)] == [True, False, None]


def test_a_paused_screen_takes_nothing_in():
    """Space holds the screen."""
    feed = Feed()
    app, text, _ = pressed("space", "r", feed=feed)
    before = len(feed.asked)
    app._tick()
    assert app.options.paused
    assert "paused" in text
    assert len(feed.asked) == before


def test_alerts_are_chosen_and_diagnosed():
    """In Alerts the arrows choose, and the run is diagnosed once."""
    feed = Feed()
    app, _, _ = pressed("5", "down", "down", "1", "5", feed=feed)
    assert app.options.chosen == 1
    assert feed.asked.count("diagnose") == 1


def test_the_mouse_chooses_views_and_keys():
    """A click on a tab shows it, one on a key does what the key does."""

    async def go():
        app = TopApp(Feed(), 3600.0)
        async with app.run_test(size=(120, 36)) as pilot:
            await drawn(pilot)
            hits = {hit.action: hit for hit in app._canvas.frame.hits}
            await pilot.click(offset=(hits["view ranks"].x + 2, 1))
            await pilot.pause()
            view = app.options.view
            await pilot.click(offset=(hits["help"].x + 1, 35))
            await pilot.pause()
            return view, len(app.screen_stack)

    assert asyncio.run(go()) == ("ranks", 2)


def test_a_newer_run_takes_over():
    """What is shown goes over to the run that `newer` returns, and the one before is closed."""
    first, second = Feed(), Feed()
    second.scene.title = "the next one"

    async def go():
        app = TopApp(first, 3600.0, newer=lambda feed: second if feed is first else None)
        async with app.run_test(size=(120, 36)) as pilot:
            await drawn(pilot)
            app._follow()
            app._follow()
            return app.feed

    assert asyncio.run(go()) is second
    assert first.closed


def test_only_lines_that_changed_are_drawn_again():
    """A screen of which one line differs refreshes that line alone."""

    async def go():
        app = TopApp(Feed(), 3600.0)
        async with app.run_test(size=(80, 24)) as pilot:
            await drawn(pilot)
            regions = []
            app._canvas.refresh = lambda *found, **_: regions.append(found)
            app.feed.scene.now += 1
            app.draw()
            return regions

    regions = asyncio.run(go())
    assert [region.y for region in regions[0]][:1] == [0]
    assert len(regions[0]) <= 3


class Moments:
    """A machine that tells the same every time."""

    def __init__(self):
        self.closed = False

    def look(self):
        node = machine_scene().nodes[-1]
        return type("Moment", (), {"values": node.values, "events": [{"kind": "gpu_lost", "gpu": 1}]})()

    def absent(self):
        return {"power": "no sensor"}

    def close(self):
        self.closed = True


def test_the_machine_alone_is_shown():
    """Without a run there is one view: the machine."""
    machine = Moments()
    app, text, _ = pressed("tab", "slash", feed=MachineFeed(machine, "node-a", clock=lambda: 0.0))
    assert app.options.view == "machine"
    assert "gpu 0" in text
    assert machine.closed


def test_enter_opens_the_console_of_the_selected_rank():
    """In Ranks, enter shows what the selected rank prints; left and right go to another rank, and to all of them."""
    feed = Feed()
    app, text, _ = pressed("4", "down", "enter", feed=feed)
    assert (app.options.view, app.options.rank) == ("console", 0)
    assert feed.asked[-1] == ("console", 0)
    assert "console rank 0" in text
    assert pressed("4", "enter", "right", feed=Feed())[0].options.rank == 3
    assert pressed("6", "left", feed=Feed())[0].options.rank == 3
    assert pressed("6", "right", "left", feed=Feed())[0].options.rank is None


def test_the_console_follows_unless_it_is_scrolled():
    """Up shows older lines, which then hold still; end follows the newest again."""
    app, text, _ = pressed("6", "pageup")
    assert app.options.newest == app.feed.scene.console.end - 10
    assert "10 newer lines" in text
    app, text, _ = pressed("6", "home")
    assert app.options.newest == 1
    app, text, _ = pressed("6", "pageup", "end")
    assert app.options.newest is None
    assert "mismatch" in text
