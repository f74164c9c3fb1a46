from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from stepscope.analysis.trace import summary as trace_summary
from stepscope.analysis.trace.collectives import extract
from stepscope.analysis.trace.compare import compare_traces
from stepscope.analysis.trace.ranks import compare_ranks
from stepscope.analysis.trace.window import window_of
from stepscope.reports.markup import named, table, tag
from stepscope.reports.trace_page import page
from tests.analysis.trace_rig import Rig

HOSTILE = "</style><script>alert(1)</script>\"'&<img src=x onerror=y>"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32"


def training(rank: int = 0, slow: float = 0.0, name: str = "sgemm") -> Rig:
    rig = Rig(rank=rank)
    for step in range(4):
        at = 1000.0 * step
        rig.annotation(f"ProfilerStep#{step}", at, at + 1000).operator("aten::mm", at, at + 100, shapes="[[2,2]]")
        rig.launch(name, (at + 10, at + 12), (at + 20, at + 400 + slow))
        rig.launch(REDUCE, (at + 50, at + 52), (at + 400 + slow, at + 900), stream=9)
    return rig.operator("aten::empty", 0, 9).memory(5, 2**20, 1, 2**21).memory(500, -(2**20), 1, 2**20)


def facts_of(trace, **more) -> dict:
    window = window_of(trace)
    details = trace_summary.details(trace, window)
    shares = {"idle_percent": 10.0, "compute_percent": 40.0, "communication_percent": 50.0, "memcpy_percent": None}
    found = [one.facts() for one in trace_summary.findings(details)]
    return (
        {"file": trace.file, "rank": trace.rank, "window": window.facts(), "findings": found} | shares | details | more
    )


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects them."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


@pytest.fixture
def ranks() -> str:
    traces = [training(rank, 100.0 * (rank == 2)).trace() for rank in range(3)]
    return page(
        {"ranks": [facts_of(one) for one in traces], "many_ranks": compare_ranks([extract(one) for one in traces])}
    )


def test_one_file_needs_nothing_else(ranks):
    """No script, no link, no picture, no address: the page is complete in itself."""
    found = Page(ranks)
    names = {name for name, _ in found.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "form", "base"}
    assert not re.search(r"https?:|//[a-z]|url\(|@import", ranks)
    assert not any(
        "style" in attributes or any(key.startswith("on") for key in attributes) for _, attributes in found.tags
    )


def test_the_policy_allows_its_own_style_and_nothing_else(ranks):
    """The digest in the policy is that of the style in the page."""
    policy = next(
        one["content"] for name, one in Page(ranks).tags if one.get("http-equiv") == "Content-Security-Policy"
    )
    style = re.search(r"<style>(.*?)</style>", ranks, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'")
    assert f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_light_and_dark_are_both_there(ranks):
    """The reader's setting chooses."""
    assert "color-scheme: light dark" in ranks
    assert "prefers-color-scheme: dark" in ranks


def test_a_hostile_name_stays_text():
    """The name of a kernel, a rank's file or a finding never becomes part of the page."""
    trace = training(name=HOSTILE).trace()
    finding = {"severity": "warning", "text": HOSTILE, "remedy": HOSTILE, "gain_ratio": 0.5}
    text = page({"ranks": [facts_of(trace, file=HOSTILE, rank=None, findings=[finding])], "title": HOSTILE})
    found = Page(text)
    assert "script" not in {name for name, _ in found.tags}
    assert HOSTILE in found.text


def test_it_shows_ranks_waiting_and_the_straggler(ranks):
    """Every part that there are facts for has its section."""
    text = Page(ranks).text
    for words in ("Findings", "Where the time went", "Ranks among each other", "Stragglers", "Timeline", "rank 2"):
        assert words in text
    for words in ("Critical path of step", "Kernels by family", "Operators", "Launches", "owner at the peak"):
        assert words in text
    assert "aligned by their collectives" in text


def test_a_comparison_ends_with_its_sum():
    """Both sides are named, and the last line is the step."""
    before, after = training().trace(), training(slow=50).trace()
    text = Page(page({"ranks": [facts_of(before), facts_of(after)], "comparison": compare_traces(before, after)})).text
    assert "Before and after" in text
    assert "a step" in text
    assert {"before", "after"} <= set(text.split())


@pytest.mark.parametrize(
    "facts", [{}, {"ranks": []}, {"ranks": [{"file": "x", "rank": 1}]}, {"ranks": [], "many_ranks": {}}]
)
def test_few_facts_make_a_small_page(facts):
    """What is not there is left out."""
    assert Page(page(facts)).text


def test_an_empty_trace_makes_a_page():
    """A trace without any event is shown as such."""
    assert "Trace" in Page(page({"ranks": [facts_of(Rig().trace())]})).text


def test_what_is_not_markup_is_escaped():
    """Children and attributes are text unless they were made by `tag`."""
    assert tag("p", "a<b", [tag("b", 1.5), None], class_='"', data_x=None) == '<p class="&quot;">a&lt;b<b>1.5</b></p>'
    assert named("x" * 100, 10) == f'<span class="name" title="{"x" * 100}">{"x" * 9}…</span>'
    assert '<td class="number">2</td>' in table(["a", "b"], [["x", 2]], " n")
