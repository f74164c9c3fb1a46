from __future__ import annotations

import re
from pathlib import Path

from stepscope.samplers.machine import host_samplers
from stepscope.samplers.nvidia import NvidiaSampler

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "machine.md"


def test_page_lists_every_sample():
    """The page has a row for each metric that a sampler declares, with its unit, kind and help, and no other."""
    samplers = [*host_samplers(Path("/"), Path("/"), dict), NvidiaSampler(None, all_devices=False, pids=set)]
    declared = dict.fromkeys(metric for sampler in samplers for metric in sampler.metrics)
    rows = re.findall(r"^\| `([\w/*]+)` \| ([^|]+) \| (\w+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    shown = {(name, "" if unit == "-" else unit, kind, text) for name, unit, kind, text in rows}
    assert shown == {tuple(metric) for metric in declared}
