"""A run whose every name and text tries to become code, or to break the layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bench.drawn_runs import Drawn, alert, trained, write
from stepscope.store.layout import RunFolder
from stepscope.store.sinks import SinkState

if TYPE_CHECKING:
    from pathlib import Path

MARK = "hacked"
"""Name of the variable that a payload sets if it runs."""
PAYLOADS = (
    f"<img src=x onerror=window.{MARK}=1;alert(1)>",
    f'"><svg/onload=window.{MARK}=2>',
    f"</script><script>window.{MARK}=3;alert(3)</script>",
    f"javascript:window.{MARK}=4",
    f"' onmouseover='window.{MARK}=5' x='",
    f"<iframe srcdoc='<script>parent.{MARK}=6</script>'></iframe>",
    f'${{window.{MARK}=7}}{{{{constructor.constructor("window.{MARK}=8")()}}}}',
    f'<a href="data:text/html,<script>opener.{MARK}=9</script>">loss</a>',
    "<style>@import'//evil.example/x.css';*{display:none}</style><base href=//evil.example/>",
)
AWKWARD = (
    "__proto__",
    "constructor",
    "toString",
    "loss/" + "very_long_name_" * 24,
    "rtl/\u202eexe.gnp\u202c",
    "emoji/🔥🚀 数据/Ünïcödé",
    "space and\ttab and\nnewline",
    "a/../../../etc/passwd",
    "%2e%2e%2f%00",
    "a?b=c#d&e",
    "=cmd|' /C calc'!A0",
    "..",
    "NaN",
    "0",
)


def hostile() -> Drawn:
    """Return the run; the first payload is its name, the others are everywhere else."""
    run = trained(PAYLOADS[0], 5, 300)
    run.state, run.cause = "failed", f"RuntimeError: {PAYLOADS[2]}"
    random = np.random.default_rng(6)
    for index, name in enumerate((*PAYLOADS, *(f"group/{text}" for text in PAYLOADS), *AWKWARD)):
        run.values[name] = np.cumsum(random.normal(0, 1, run.steps)) + index
    run.config = dict(zip(PAYLOADS, (*PAYLOADS[1:], PAYLOADS[0]), strict=True))
    run.config |= {"nested": {PAYLOADS[1]: [PAYLOADS[2], {PAYLOADS[3]: PAYLOADS[4]}]}, "__proto__": {MARK: 10}}
    run.devices = {"gpu/0": PAYLOADS[0], "gpu/1": PAYLOADS[1], "gpu/2": PAYLOADS[5]}
    run.samples[f"gpu/{PAYLOADS[1]}/utilization_ratio"] = run.samples["gpu/0/utilization_ratio"]
    run.samples[f"temperature/{PAYLOADS[0]}/celsius"] = run.samples["gpu/0/temperature_celsius"]
    run.tags = {
        "tags": list(PAYLOADS),
        "command": list(PAYLOADS),
        "git": {"commit": PAYLOADS[1], "branch": PAYLOADS[2]},
    }
    run.events = _events(run)
    return run


def _events(run: Drawn) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for index, text in enumerate(PAYLOADS):
        step = 20 + index * 20
        more = {"text": text, "remedy": text, "metric": text, "value": 1.0, "threshold": 2.0, "window": 5}
        state = "resolved" if index % 2 else "firing"
        found.append(alert(run, step, text, state, "critical", **more, labels={text: text}, id=f"{index}-{text}"))
        found.append({"kind": text, "time": run.at(step + 5), "step": step + 5, "text": text, text: text})
        found.append({"kind": "checkpoint", "time": run.at(step + 8), "step": step + 8, "text": text, "path": text})
    return found


def write_hostile(root: Path) -> Path:
    """Write it below a project whose name is a payload too, as far as a folder's name can be."""
    path = write(root / PAYLOADS[1].replace("/", " ") / "hostile", hostile())
    for place, text in enumerate(PAYLOADS):
        link = {"link": text if place % 2 else f"https://evil.example/{text}"}
        facts: dict[str, Any] = {
            "name": text,
            "kind": text,
            "address": text,
            "why": text,
            "state": text if place % 2 else "denied",
        }
        SinkState("node", f"sink-{place}", **facts, known=link, behind_rows=place, behind_seconds=9.0).save(
            RunFolder(path)
        )
    return path
