"""One run, every screen: the rates are the same."""

from __future__ import annotations

import time

import pytest

import stepscope
from stepscope.cli.demo.progress import progress, read
from stepscope.core.numbers import format_value
from stepscope.session import card as end_card
from stepscope.store.parquet import connect
from stepscope.tui.reading import answer, opened
from stepscope.tui.run_feed import RunFeed
from stepscope.views.overview import overview
from stepscope.views.report import report
from stepscope.views.run_card import card
from stepscope.views.run_head import run_head
from stepscope.web.live import FollowedRun


@pytest.fixture
def trained(tmp_path):
    """A short run that took long to set up, sped up in its second half and was busy after its last step."""
    with stepscope.init(dir=tmp_path, project="p") as run:
        time.sleep(0.2)
        for index in range(60):
            with run.step(samples=16):
                time.sleep(0.004 if index < 30 else 0.001)
        with run.phase("evaluation"):
            time.sleep(0.2)
    return run.path


def test_every_screen_shows_the_same_rates(trained):
    """Card of the end, show, list, head, live page, top, report and demo show one number for one run."""
    past = stepscope.open(trained)
    seconds = past.series("step_seconds").value.sum()
    [shown] = overview(past)["throughput"]
    head = run_head(past)
    feed = RunFeed(trained)
    feed.answered(*opened(answer(past, feed.wanted())))
    channel = FollowedRun(trained, connect())
    written = report(past)["performance"]
    found = {
        "show": shown["steps_per_second"],
        "list": card(past)["rate"],
        "head": head["status"]["rate"],
        "key number": next(one["value"] for one in head["numbers"] if one["key"] == "rate"),
        "live page": channel.hello()["status"]["rate"],
        "top": feed.scene.status["rate"],
        "report": written["rate"],
        "report's table": written["throughput"][0]["steps_per_second"],
        "demo": progress(read(past)).rates.steps_per_second,
    }
    assert found == dict.fromkeys(found, pytest.approx(60 / seconds))
    samples = [shown["samples_per_second"], card(past)["samples_per_second"], feed.scene.samples_per_second]
    assert samples == [pytest.approx(16 * 60 / seconds)] * 3
    text = dict(end_card.lines(trained, "x", 60))["training"]
    assert text.startswith(f"60 steps at {format_value(60 / seconds, 'steps/second')}, ")
