from __future__ import annotations

import base64
import gzip
import json
import re
import struct

import numpy as np
import pytest

import stepscope
from bench.drawn_console import printed, write_console
from bench.drawn_hostile import write_hostile
from bench.drawn_machine import HOST
from bench.drawn_runs import START, Drawn, sick, trained, write
from stepscope.cli.main import main
from stepscope.core.errors import UsageError
from stepscope.reports.report_png import check

SECTIONS = (
    "Performance Summary",
    "Training Progress",
    "Resource Utilization",
    "Diagnosis and Recommendations",
    "Alerts",
    "Environment",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a run that went wrong and one that did not."""
    found = tmp_path_factory.mktemp("runs")
    write(found / "demo" / "sick", sick("gpt small", steps=300))
    write(found / "demo" / "fine", trained("fine", steps=300))
    return found


@pytest.fixture(scope="module")
def html(root, tmp_path_factory):
    """The HTML report of the run that went wrong."""
    path = tmp_path_factory.mktemp("report") / "r.html"
    assert main(["report", "sick", "--dir", str(root), "--html", str(path)]) == 0
    return path


def test_the_end_of_a_failed_run_comes_first(tmp_path):
    """HTML and Markdown begin with the first error, the last lines of its rank, and the errors that follow from it."""
    drawn = sick("ill", steps=60)
    drawn.state, drawn.cause = "failed", "exit code 1"
    path = write(tmp_path / "demo" / "20261118-100000-dead", drawn)
    write_console(path, printed(START / 1e6, 0.25, 60, 4, HOST, guilty=3))
    html, words = tmp_path / "r.html", tmp_path / "r.md"
    given = ["--dir", str(tmp_path), "--html", str(html), "--markdown", str(words)]
    assert main(["report", str(path), *given]) == 0
    for text in (html.read_text(), words.read_text()):
        before = text.partition("Performance Summary")[0]
        assert "How It Ended" in before
        assert "RuntimeError: cannot make batch 17" in before
        assert "its peer was gone already" in before


def curves_of(text):
    """Return head and payload of the numbers that lie in a file."""
    packed = re.search(r'<template id="report-series">(.*?)</template>', text, re.DOTALL).group(1)
    data = gzip.decompress(base64.b64decode(packed))
    size = struct.unpack("<I", data[4:8])[0]
    return json.loads(data[8 : 8 + size])["curves"], data[8 + size :]


@pytest.mark.promise("S1-069", "S1-070", "S1-071", "S1-072")
def test_every_part_is_there(root, html, tmp_path):
    """Each format has the six parts of the documents, by their names."""
    words, facts = tmp_path / "r.md", tmp_path / "r.json"
    assert main(["report", "sick", "--dir", str(root), "--markdown", str(words), "--json", str(facts)]) == 0
    for title in SECTIONS:
        assert f">{title}</h2>" in html.read_text()
        assert f"\n## {title}\n" in words.read_text()
    found = json.loads(facts.read_text(), parse_constant=pytest.fail)
    assert {"performance", "training", "resources", "diagnosis", "alerts", "run", "comparison"} <= found.keys()
    assert found["diagnosis"]["findings"][0]["remedy"]
    assert found["diagnosis"]["findings"][0]["remedy"][:40] in html.read_text()


@pytest.mark.promise("S1-073")
def test_the_html_file_stands_alone(html):
    """The file names nothing outside of itself, and its policy allows its own script and style by hash alone."""
    text = html.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src &#x27;none&#x27;")
    assert "unsafe" not in policy
    assert not re.findall(r'(?:src|href)="(?!#)', text)
    assert "<link" not in text
    assert "http://" not in re.sub(r"http://www\.w3\.org/\S+", "", text)


@pytest.mark.promise("S1-013")
def test_the_numbers_are_those_of_the_run(root, html):
    """Extremes, points and those that are not finite of every curve are the recorded ones."""
    heads, payload = curves_of(html.read_text())
    past = stepscope.open(root / "demo" / "sick")
    assert {"loss", "accuracy"} <= {head["name"] for head in heads}
    for head in heads:
        if head["kind"] != "points" or head["name"] != "loss":
            continue
        column = np.frombuffer(payload, "<f8", head["n"], head["at"] + 16 * head["n"])
        recorded = past.series("loss", rank=head["rank"]).value
        np.testing.assert_allclose(column, recorded, rtol=1e-6)


@pytest.mark.slow
def test_a_million_points_fit_into_two_megabytes_with_every_spike(tmp_path):
    """The file of a million points in fifty metrics is at most 2 MB, and one step of each is still the highest."""
    steps, names = 20_000, [f"metric_{number:02}" for number in range(50)]
    random = np.random.default_rng(0)
    run = Drawn("long", steps=steps, step_seconds=0.01)
    for place, name in enumerate(names):
        run.values[name] = random.normal(1.0, 0.1, steps)
        run.values[name][1000 + 300 * place] = 1000.0 + place
    write(tmp_path / "p" / "long", run)
    target = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "p" / "long"), "--html", str(target)]) == 0
    assert target.stat().st_size <= 2_000_000
    heads, payload = curves_of(target.read_text())
    assert len(heads) == 24
    for head in heads:
        size = head["n"]
        highest = np.frombuffer(payload, "<f8", size, head["at"] + 4 * 8 * size)
        assert head["points"] == steps
        assert highest.max() == 1000.0 + names.index(head["name"])


def test_no_text_of_a_run_becomes_markup(tmp_path):
    """Names, texts and configurations that are HTML, Markdown or escapes are shown as text."""
    write_hostile(tmp_path)
    path = next(path.parent for path in tmp_path.glob("*/*/run.json"))
    page, words = tmp_path / "r.html", tmp_path / "r.md"
    assert main(["report", str(path), "--html", str(page), "--markdown", str(words)]) == 0
    body = re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.DOTALL)
    assert not re.findall(r"<(?:img|iframe|a |svg onload|script)", body)
    assert not re.findall(r"\son\w+=(?![^<]*&)", re.sub(r">[^<]*<", "><", re.sub(r'"[^"]*"', '""', body)))
    assert not re.search(r"(?<!\\)<(?:img|script|svg)", words.read_text())
    assert "\x1b" not in words.read_text()


@pytest.mark.promise("S1-073")
@pytest.mark.slow
def test_pictures_need_no_browser(root, tmp_path):
    """`--png` writes pictures of the training, the machine and the step."""
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install stepscope[png]")
    assert main(["report", "sick", "--dir", str(root), "--png", str(tmp_path / "d")]) == 0
    for name in ("training.png", "resources.png", "step.png"):
        data = (tmp_path / "d" / name).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", data[16:24])[0] > 1000


def test_without_matplotlib_the_extra_is_named():
    """Who asks for pictures that cannot be drawn is told what to install."""
    with pytest.raises(UsageError, match=r"pip install 'stepscope\[png\]'"):
        check("a_library_that_is_not_there")


@pytest.mark.slow
def test_runs_are_compared_in_every_format(root, tmp_path):
    """`--compare A B` puts both into every chart, with what differs and by how much."""
    page, words = tmp_path / "c.html", tmp_path / "c.md"
    wanted = ["report", "--compare", "fine", "sick", "--dir", str(root), "--html", str(page), "--markdown", str(words)]
    assert main(wanted) == 0
    heads, _ = curves_of(page.read_text())
    assert {head["run"] for head in heads if head["name"] == "loss"} == {"0", "1"}
    assert ">Comparison</h2>" in page.read_text()
    assert re.search(r'line-0">■ </span>fine</span></th>.*line-1">■ </span>gpt small</span></th>', page.read_text())
    assert "| step\\_seconds |" in words.read_text()


def test_a_report_has_the_texts(tmp_path):
    """What the program logged as text stands in the report, the newest first, with its step."""
    run = Drawn("noted", steps=20, values={"loss": np.linspace(3, 1, 20)})
    run.events = [
        {"kind": "log", "time": run.at(step), "step": step, "values": {"note": f"<b>{step}"}} for step in (3, 9)
    ]
    write(tmp_path / "demo" / "noted", run)
    page = tmp_path / "n.html"
    assert main(["report", "noted", "--dir", str(tmp_path), "--html", str(page)]) == 0
    text = page.read_text()
    assert 0 < text.index("&lt;b&gt;9") < text.index("&lt;b&gt;3")


@pytest.mark.promise("S3-049")
def test_baseline_reports_go_to_their_folder(root, tmp_path, monkeypatch):
    """`--baseline` keeps HTML, Markdown and JSON under docs/performance of the repository one is in."""
    monkeypatch.chdir(tmp_path)
    assert main(["report", "fine", "--dir", str(root), "--baseline"]) == 0
    assert {path.name for path in (tmp_path / "docs" / "performance").iterdir()} == {
        "fine.html",
        "fine.json",
        "fine.md",
    }


def test_files_are_replaced_only_by_force(root, tmp_path, capsys):
    """A file that exists stays, unless --force is given."""
    target = tmp_path / "r.md"
    target.write_text("mine")
    wanted = ["report", "fine", "--dir", str(root), "--markdown", str(target)]
    assert main(wanted) == 2
    assert target.read_text() == "mine"
    assert "exists already" in capsys.readouterr().err
    assert main([*wanted, "--force"]) == 0
    assert target.read_text().startswith("# fine")


def test_without_a_format_it_is_printed(root, capsys):
    """With no file named, Markdown goes to standard output; without a run, the command says what to write."""
    assert main(["report", "fine", "--dir", str(root)]) == 0
    assert capsys.readouterr().out.startswith("# fine\n")
    assert main(["report"]) == 2


def test_without_the_built_page_charts_are_drawings(root, tmp_path, monkeypatch):
    """Where the page was not built the file has drawings, and no script."""
    monkeypatch.setattr("stepscope.reports.report_file._bundle", lambda *_: None)
    target = tmp_path / "r.html"
    assert main(["report", "fine", "--dir", str(root), "--html", str(target)]) == 0
    text = target.read_text()
    assert "<script" not in text
    assert text.count('class="drawing"') > 10


def test_an_empty_run_has_a_report(tmp_path):
    """A run without a single point is reported, too."""
    write(tmp_path / "p" / "empty", Drawn("empty", steps=1))
    target = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "p" / "empty"), "--html", str(target)]) == 0
    assert "No metrics were recorded" in target.read_text()


@pytest.mark.promise("S1-073")
@pytest.mark.slow
def test_the_file_works_in_a_browser(html):
    """Opened from disk, every chart is drawn, nothing is asked from anywhere, and the policy is kept."""
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: make test installs it")
    chromium = pytest.importorskip("bench.chromium")
    if chromium.executable() is None:
        pytest.skip("needs a browser: make test installs one")
    with api.sync_playwright() as playwright:
        browser = chromium.launched(playwright)
        page = browser.new_page(viewport={"width": 1280, "height": 20_000})
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(html.as_uri())
        page.wait_for_selector('.chart[data-state="drawn"]')
        page.wait_for_function(
            "() => document.querySelectorAll('.chart[data-state=\"drawn\"]').length ==="
            " document.querySelectorAll('figure.slot').length"
        )
        page.click("text=log")
        page.emulate_media(media="print")
        assert page.locator("figure.slot .still").first.is_visible()
        assert not page.locator("figure.slot > .chart").first.is_visible()
        browser.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []
