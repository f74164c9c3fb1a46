"""The blocks of the mission's documents, where those lie beside the repository. Nothing of them is kept here."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT.parent / "shared" / "seeds"
FENCE = re.compile(r"\s*```(?P<language>\w*)")
ABSENT = "the documents, ../shared/seeds, are not here"

MODULES = {
    "monitor_training": "stepscope.monitor",
    "performance_monitor": "stepscope.monitor",
    "monitoring.gpu_monitor": "stepscope.monitor",
    "training.qlora_finetune_monitored": "stepscope.callbacks",
    "src.utils.profiling": "stepscope.profiling",
    "src.utils.metrics": "stepscope.metrics",
}
"""Imports of the documents, and where we have what they name."""

LATER = {
    "import ray": "Ray: a later issue",
    "log_model_inference_benchmark": "the inference benchmark: a later issue",
    "40_profile_gpu.py": "the planner: a later issue",
    "qlora_finetune_monitored.py": "a script of the user's own, with a model and data that nobody has here",
}
"""What cannot run yet, by a word of its block, and why."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its document, the line of its first line of code, its language and code."""

    document: str
    line: int
    language: str
    code: str

    @property
    def place(self) -> str:
        """Where it stands."""
        return f"{self.document}:{self.line}"

    @property
    def later(self) -> str:
        """Why it cannot run yet; empty if it can."""
        return next((why for word, why in LATER.items() if word in self.code), "")


def documents():
    """Return the documents' paths by their number; none where they are not."""
    return {path.name[:3]: path for path in sorted(FOLDER.glob("[0-9]*.txt"))}


def blocks(language):
    """Return the blocks of a language in all documents, in order."""
    return [block for name, path in documents().items() for block in _blocks(name, path) if block.language == language]


def _blocks(name, path):
    lines = path.read_text(encoding="utf-8").splitlines()
    begun = None
    for number, line in enumerate(lines):
        match = FENCE.match(line)
        if match is None:
            continue
        if begun is None:
            begun = number, match["language"]
        else:
            code = textwrap.dedent("\n".join(lines[begun[0] + 1 : number])) + "\n"
            yield Block(name, begun[0] + 2, begun[1], code)
            begun = None


def adjusted(code):
    """Return Python with its imports adjusted by the table."""
    for theirs, ours in MODULES.items():
        code = re.sub(rf"^(\s*from ){re.escape(theirs)}( import )", rf"\g<1>{ours}\g<2>", code, flags=re.MULTILINE)
    return code
