from __future__ import annotations

import csv
import json
from urllib.parse import urlencode

import pytest

from tests.browser.conftest import FASTER, HEALTHY, MANY, SICK
from tests.browser.pages import address, chart, settle, visit


@pytest.mark.promise("S1-044")
def test_the_list_shows_every_run(page, server, keys):
    """The first page lists all runs with their state, step and loss."""
    visit(page, server)
    for name in (HEALTHY, FASTER, SICK, MANY):
        page.get_by_text(name, exact=True).first.wait_for()
    assert page.get_by_text("oom-killed").count() >= 1


def test_the_list_is_found_by_typing(page, server, keys):
    """What is typed into the search leaves the runs that match, and the address holds it."""
    visit(page, server)
    page.keyboard.press("/")
    page.keyboard.type("fp16")
    page.get_by_text(HEALTHY, exact=True).first.wait_for(state="hidden")
    assert page.get_by_text(SICK, exact=True).first.is_visible()
    page.wait_for_function("() => location.hash.includes('fp16')")
    page.reload()
    settle(page, "runs")
    assert page.get_by_text(HEALTHY, exact=True).count() == 0


@pytest.mark.promise("S1-044")
def test_overview_says_how_a_run_ended(page, server, keys):
    """The overview of a dead run names its end, its cause and its phases."""
    visit(page, server, "overview", keys[SICK])
    text = page.locator("main").inner_text()
    assert "oom-killed" in page.locator("body").inner_text()
    assert "out of memory" in text
    assert "backward" in text


def test_the_verdict_says_what_it_rests_on(page, server, keys):
    """A note of the diagnosis, as that others used the machine, stands below the verdict."""
    told = {"run": "r", "primary": None, "summary": "", "findings": [], "missing": [], "changes": []}
    told["notes"] = ["other programs took 1.0 of 2 processors", "run the script with `stepscope run`"]
    page.route("**/api/diagnosis*", lambda route: route.fulfill(json=told))
    visit(page, server, "overview", keys[HEALTHY])
    note = page.locator(".verdict").get_by_text("Other programs took 1.0 of 2 processors")
    note.wait_for()
    assert note.is_visible()
    assert page.locator(".verdict code").inner_text() == "stepscope run"


@pytest.mark.promise("S1-001", "S1-045")
def test_training_draws_loss_accuracy_and_learning_rate(page, server, keys):
    """The training page draws loss, accuracy and learning rate, and says how many points are not finite."""
    visit(page, server, "training", keys[SICK])
    for name in ("loss", "accuracy", "learning_rate"):
        chart(page, name).scroll_into_view_if_needed()
        page.wait_for_function("(e) => e.dataset.state === 'drawn'", arg=chart(page, name).element_handle())
    assert "NaN" in chart(page, "loss").inner_text()


@pytest.mark.promise("S1-046", "S0-081")
def test_system_shows_gpus_processors_and_memory(page, server, keys):
    """The system page has a tile for each GPU, a row for each process, and the training's charts beside its own."""
    visit(page, server, "system", keys[SICK])
    assert page.locator(".gpu").count() == 4
    hot = page.locator(".gpu[data-gpu='2']").inner_text()
    assert "91" in hot
    assert "throttled" in hot
    assert page.locator(".chart[data-chart=loss]").count() == 1
    assert page.locator(".chart").count() >= 8
    page.locator(".system-processes").scroll_into_view_if_needed()
    assert page.locator(".system-processes tbody tr").count() == 4


def test_system_shows_the_training_whichever_answer_comes_first(page, server, keys):
    """The training's charts are there even if the names of its metrics come after the machine."""
    held = []
    page.route("**/api/names*", lambda route: held.append(route))  # noqa: PLW0108 - a builtin takes no attributes
    page.goto("about:blank")
    page.goto(address(server, "system", keys[SICK]))
    page.locator(".charts .chart").first.wait_for()
    assert chart(page, "loss").count() == 0
    held[0].continue_()
    chart(page, "loss").wait_for()
    assert page.locator(".charts .chart").first.get_attribute("data-chart") == "loss"


@pytest.mark.promise("S1-049")
def test_system_and_training_are_linked(page, server, keys):
    """A range brushed in one chart zooms all others, and the address holds it."""
    visit(page, server, "system", keys[HEALTHY])
    plots = page.locator(".chart[data-state=drawn] .u-over")
    box = plots.first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40, steps=4)
    page.mouse.up()
    page.wait_for_function("() => /zoom=/.test(location.hash)")
    settle(page, "system")
    ranges = page.evaluate("""() => [...document.querySelectorAll('.chart[data-state=drawn]')].filter((c) => c.chart)
      .map((c) => [c.chart.scales.x.min, c.chart.scales.x.max].map(Math.round).join())""")
    assert len(ranges) > 2
    assert len(set(ranges)) == 1
    page.keyboard.press("Escape")


@pytest.mark.promise("S1-047", "S1-049")
def test_alerts_are_listed_with_their_evidence(page, server, keys):
    """Active alerts come first, worst on top; a chosen one shows text, remedy, limit and chart."""
    visit(page, server, "alerts", keys[SICK])
    rows = page.locator(".alert-row")
    assert rows.count() == 3
    assert "critical" in rows.first.inner_text()
    page.locator(".alert-row", has_text="gpu-hot").click()
    detail = page.locator(".alert-detail")
    detail.get_by_text("check the fans").wait_for()
    page.wait_for_function("() => document.querySelector('.alert-detail .chart')?.dataset.state === 'drawn'")
    page.get_by_role("button", name="History").click()
    page.wait_for_function("() => document.querySelectorAll('.alert-row').length === 5")
    assert "resolved" in page.locator(".alert-list").inner_text()


def test_no_alert_is_said_so(page, server, keys):
    """A run without alerts says that all is quiet."""
    visit(page, server, "alerts", keys[HEALTHY])
    assert "No alerts so far" in page.locator("main").inner_text()


def test_compare_lays_runs_over_each_other(page, server, keys):
    """Two runs are drawn in one chart, their configuration differs in one key, and the table says by how much."""
    query = urlencode([("run", keys[HEALTHY]), ("run", keys[FASTER])])
    visit(page, server, "compare", "", query)
    text = page.locator("main").inner_text()
    assert "optimizer.learning_rate" in text
    assert "0.0006" in text
    page.locator(".compare-numbers").wait_for()
    assert page.locator(".compare-phase").count() == 2
    loss = chart(page, "loss")
    loss.scroll_into_view_if_needed()
    page.wait_for_function("(e) => e.dataset.state === 'drawn'", arg=loss.element_handle())
    loss.locator(".u-over").hover()
    page.locator(".tip", has_text=HEALTHY).wait_for()
    assert FASTER in page.locator(".tip").inner_text()


def test_compare_runs_are_chosen_by_ticking(page, server, keys):
    """Runs are found by typing and chosen by ticking; the address holds the choice."""
    visit(page, server, "compare")
    page.get_by_label("Find a run").fill("gpt-small")
    page.locator(".picker-line", has_text=HEALTHY).click()
    page.locator(".picker-line", has_text=FASTER).click()
    page.locator(".compare-numbers").wait_for()
    assert page.url.count("run=") == 2


@pytest.mark.promise("S1-048")
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "json"])
def test_export_downloads(page, server, keys, form):
    """Every format is a download of the metrics that are ticked."""
    visit(page, server, "export", keys[HEALTHY], "name=loss")
    with page.expect_download() as waiting:
        page.locator(f"[data-format={form}]").click()
    path = waiting.value.path()
    content = path.read_bytes()
    if form == "csv":
        rows = list(csv.DictReader(content.decode().splitlines()))
        assert len(rows) == 2000
        assert {row["name"] for row in rows} == {"loss"}
    elif form == "jsonl":
        assert len([json.loads(line) for line in content.splitlines()]) == 2000
    elif form == "json":
        assert "loss" in json.loads(content)["metrics"]
    else:
        assert content.startswith(b"PAR1")


def test_export_gives_code_and_pictures(page, server, keys):
    """The page shows Python, SQL and shell lines for what is chosen, and saves a chart as a picture."""
    visit(page, server, "export", keys[HEALTHY], "name=loss")
    page.locator(".export-code").nth(2).wait_for()
    code = page.locator(".export-recipes").inner_text()
    assert "import stepscope" in code
    assert "SELECT" in code
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as PNG").click()
    assert waiting.value.suggested_filename == "loss.png"
    assert waiting.value.path().read_bytes().startswith(b"\x89PNG")


def test_the_ledger_accounts_for_all_time(page, server, keys):
    """The ledger's classes sum to the wall clock, each says what is in it, and waste says what to do."""
    visit(page, server, "ledger", keys[SICK])
    page.get_by_text("Wall clock").wait_for()
    shares = page.locator(".ledger-classes tbody tr td:nth-child(3)").all_inner_texts()
    assert sum(float(share.strip("< %\u202f")) for share in shares) == pytest.approx(100, abs=2)  # whole percents
    assert "productive" in page.locator(".ledger-classes").inner_text()
    assert page.locator(".ledger-list .next").first.inner_text()


def test_help_and_tabs_by_keyboard(page, server, keys):
    """`?` shows the keys; the tabs are links that the keyboard reaches."""
    visit(page, server, "overview", keys[HEALTHY])
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("link", name="System").first.focus()
    page.keyboard.press("Enter")
    settle(page, "system")
    assert page.get_by_role("dialog").count() == 0


def test_the_tab_shows_the_state_of_the_run(page, server, keys):
    """The tab's title names the run, and its icon differs between a run that ended well and one that did not."""
    visit(page, server, "overview", keys[HEALTHY])
    icon = "() => document.querySelector('link[rel=icon]').href"
    good, title = page.evaluate(icon), page.title()
    visit(page, server, "overview", keys[SICK])
    assert HEALTHY in title
    assert page.title() != title
    assert page.evaluate(icon) != good
