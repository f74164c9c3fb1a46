"""Every word of a verdict is documented, as it is defined, and the words of the issue are among them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.analysis.diagnosis.verdict import KINDS
from stepscope.core.remedies import remedy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "diagnosis.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| ([^|]*?) \|", re.MULTILINE)
PROMISED = [
    "none",
    "input_bound",
    "copy_bound",
    "host_bound",
    "compute_bound",
    "communication_bound",
    "checkpoint_heavy",
    "evaluation_heavy",
    "compile_heavy",
    "logging_heavy",
    "gc_pauses",
    "periodic_stall",
    "straggler",
    "cpu_throttled",
    "gpu_throttled",
    "swapping",
    "padding_waste",
    "gpu_idle",
    "memory_leak",
    "fragmentation",
    "oom",
    "divergence",
    "loss_spike",
    "plateau",
    "non_finite",
    "exploding_gradients",
    "vanishing_gradients",
    "dead_gradients",
    "learning_rate",
    "overfitting",
    "dead_worker",
    "hang",
    "crash",
]


def test_every_kind_stands_on_the_page_with_its_meaning() -> None:
    """And no other."""
    rows = {kind: meaning for kind, meaning in ROW.findall(PAGE) if kind in KINDS or "_" in kind}
    rows = {kind: meaning for kind, meaning in rows.items() if kind != "slow_steps"}
    assert {kind: rows.get(kind) for kind in KINDS} == KINDS
    assert set(PROMISED) <= set(KINDS)


def test_every_kind_that_the_code_finds_is_a_known_word() -> None:
    """Findings are made with words of the table only."""
    made = set()
    for path in (ROOT / "src" / "stepscope" / "analysis" / "diagnosis").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        made |= set(re.findall(r"(?:Finding|slow|_ended|_plain|_rate)\(\s*\*?\(?\"([a-z_]+)\"", text))
    assert made - {"the"} <= set(KINDS)
    assert {"input_bound", "straggler", "memory_leak", "crash", "overfitting"} <= made


BOTTLENECKS = ("slow forward", "slow backward", "slow data loading", "memory-bound")


@pytest.mark.promise("S3-020", "S3-045", "S3-048", "S4-052")
def test_the_guide_leads_from_throughput_to_a_remedy() -> None:
    """Throughput, resources, profiler, iterate: in this order, with the three alerts and the four bottlenecks."""
    guide = (ROOT / "docs" / "howto" / "slow_training.md").read_text(encoding="utf-8")
    places = [guide.index(f"\n## {title}") for title in ("1. Throughput", "2. Resources", "3. Profiler", "4. Iterate")]
    assert places == sorted(places)
    for word in ("30 samples", "uneven", "high memory", "below 50 %", "above 90 %", "30 % of the time"):
        assert word in guide, word
    rows = {row: line for row in BOTTLENECKS for line in guide.splitlines() if line.startswith(f"| {row} |")}
    assert list(rows) == list(BOTTLENECKS)
    for advice in (rows["slow backward"], remedy("compute_bound", "backward")):  # where it differs from the usual, why
        assert re.search(r"[Gg]radient checkpointing.* saves memory.*time", advice)
