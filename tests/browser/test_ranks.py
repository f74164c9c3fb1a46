"""The Ranks tab: a map of ranks over steps, the steps of one rank, and a row for each."""

from __future__ import annotations

import pytest

from bench.drawn_fleet import LATE, write_fleet
from bench.served import Server
from tests.browser.conftest import HEALTHY
from tests.browser.pages import chart, settle, visit

NAME = "64 ranks"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A server over a run of 64 ranks on 8 nodes, one of which is late."""
    scratch = tmp_path_factory.mktemp("fleet")
    write_fleet(scratch / "runs" / "demo" / "20261115-150000-fl33", NAME)
    server = Server(scratch / "runs", scratch)
    yield server
    server.stop()


@pytest.fixture
def origin_server(fleet):
    """The server that the page of these tests may ask."""
    return fleet


@pytest.fixture
def page(context, origin_server):
    """A page that must not complain, and may ask the fleet's server only."""
    from tests.browser.watched import watched_page

    with watched_page(context, origin_server.origin) as found:
        yield found


@pytest.fixture
def shown(page, fleet):
    """The Ranks tab of that run, with a rank in its panel."""
    visit(page, fleet, "ranks", fleet.keys()[NAME])
    page.wait_for_selector(".rank-numbers")
    return page


def panel(page):
    return page.locator(".rank-panel").inner_text()


def test_the_late_rank_is_named_and_shown_first(shown):
    """The sentence names the late rank, its steps are in the panel, and its row is the first."""
    assert f"rank {LATE} on node-2 is late by" in shown.locator(".rank-summary").inner_text()
    assert f"Rank {LATE}" in panel(shown)
    assert "data" in panel(shown)
    assert shown.locator(".rank-list tbody tr").first.get_attribute("data-rank") == str(LATE)


def test_a_click_shows_the_phases_of_that_rank_and_step(shown):
    """A click on a cell selects its rank; an arrow moves to the next one."""
    shown.locator(".rank-plot").click(position={"x": 30, "y": 200})
    shown.wait_for_function(f"() => !document.querySelector('.rank-panel h2').textContent.endsWith('Rank {LATE}')")
    before = shown.locator(".rank-panel h2").inner_text()
    shown.keyboard.press("ArrowDown")
    shown.wait_for_function("(text) => document.querySelector('.rank-panel h2').textContent !== text", arg=before)
    assert "median rank" in panel(shown)


def test_dragging_zooms_and_the_address_holds_it(shown):
    """A drag over the map shows these steps only, as in every chart; a double click shows all."""
    box = shown.locator(".rank-plot").bounding_box()
    shown.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    shown.mouse.down()
    shown.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=4)
    shown.mouse.up()
    shown.wait_for_function("() => location.hash.includes('zoom=step')")
    shown.wait_for_function("() => !document.querySelector('.rank-axis').textContent.startsWith('0')")
    shown.locator(".rank-plot").dblclick(position={"x": 100, "y": 100})
    shown.wait_for_function("() => !location.hash.includes('zoom')")


def test_ranks_are_grouped_and_any_metric_is_shown(shown):
    """The order and what the map shows are in the address, so the view can be shared."""
    shown.get_by_role("button", name="Node", exact=True).click()
    shown.wait_for_function("() => document.querySelector('.rank-gutter').textContent.includes('node-7')")
    shown.locator(".toolbar select").select_option("phase/forward")
    shown.wait_for_function("() => document.querySelector('.rank-map h3').textContent === 'phase/forward'")
    shown.reload()
    settle(shown, "ranks")
    shown.wait_for_function("() => document.querySelector('.rank-map h3').textContent === 'phase/forward'")


def test_the_address_holds_the_selected_rank_and_step(shown, fleet):
    """What was selected is in the address: opened elsewhere, it shows the same steps of the same rank."""
    shown.locator(".rank-pick", has_text="27").first.click()
    shown.wait_for_function("() => location.hash.includes('rank=27')")
    shown.wait_for_function("() => document.querySelector('.rank-panel h2').textContent === 'Rank 27'")
    shown.wait_for_function("() => !document.querySelector('[aria-busy=true]')")
    before = panel(shown)
    shown.reload()
    settle(shown, "ranks")
    shown.wait_for_function("(text) => document.querySelector('.rank-panel').innerText === text", arg=before)
    assert shown.get_by_role("link", name="What it printed then").get_attribute("href").endswith("step=1984")


def test_ranks_that_were_late_for_a_while_stand_out(shown):
    """Also a rank that is on time now has its label, next to those that are late, if the map shows that it was late."""
    labels = shown.locator(".rank-gutter span").all_inner_texts()
    assert set(labels) == {"17", "27", "5", "42", "60 more"}


def test_rows_are_sorted_by_any_column(shown):
    """A click on a title sorts by it, a second click turns the order round."""
    first = "() => document.querySelector('.rank-list tbody tr').dataset.rank === '{}'"
    shown.locator(".rank-sort", has_text="rank").first.click()
    shown.wait_for_function(first.format(0))
    shown.locator(".rank-sort", has_text="rank").first.click()
    shown.wait_for_function(first.format(63))


def test_a_band_of_many_ranks_names_the_worst(page, fleet):
    """A chart that folds the ranks into a band shows the rank that is farthest from them, with its number."""
    visit(page, fleet, "training", fleet.keys()[NAME], "q=phase%2Fdata")
    box = chart(page, "phase/data").locator("canvas").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.5)
    page.locator(".tip-row", has_text=f"rank {LATE}, farthest from the mean").wait_for()
    assert "mean of all ranks" in page.locator(".tip").inner_text()


@pytest.mark.parametrize("key", [HEALTHY])
def test_a_run_of_one_rank_says_so(context, server, keys, key):
    """With a single rank there is nothing to compare."""
    page = context.new_page()
    visit(page, server, "ranks", keys[key])
    page.get_by_text("This run has one rank").wait_for()
    page.close()
