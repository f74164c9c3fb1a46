"""What traceml-ai says of the same scripts, with its lines put into them: it sees no step without.

It is looked for beside this interpreter, then at `GAUNTLET_TRACEML` (the path of its program).
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gauntlet.trial import SCRIPTS
from bench.torch_loop import free_port

if TYPE_CHECKING:
    from bench.gauntlet.cases import Case

MODELS = ("model", "net", "policy", "student", "actor", "critic", "encoder", "head", "G", "body", "compiled")
DEADLINE = 150
SAME = {
    "input_bound": {"INPUT_BOUND", "INPUT_STRAGGLER", "DATALOADER_BOUND"},
    "compute_bound": {"COMPUTE_BOUND"},
    "straggler": {"STRAGGLER", "INPUT_STRAGGLER", "COMPUTE_STRAGGLER"},
    "memory_leak": {"MEMORY_CREEP", "CREEP_CONFIRMED", "CREEP_EARLY", "HIGH_RSS"},
    "none": {"BALANCED", "NORMAL", "HEALTHY", "NO_ISSUE", "COMPUTE_BOUND"},
    "host_bound": {"WAIT_HEAVY", "RESIDUAL_HEAVY", "HOST_BOUND"},
}
"""Its words that mean ours; what it has no word for it cannot say."""


def program() -> str | None:
    """Return the path of its program; None where it is not installed."""
    places = [os.environ.get("GAUNTLET_TRACEML", ""), str(Path(sys.executable).with_name("traceml"))]
    return next((place for place in places if place and Path(place).is_file()), None)


def with_lines(source: str) -> str:
    """Return a script with `trace_step` around the body of its training loop."""
    tree = ast.parse(source)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While) and _trains(node)]
    inner = [loop for loop in loops if not any(other is not loop and other in ast.walk(loop) for other in loops)]
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {argument.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for argument in node.args}
    model = next((name for name in MODELS if name in bound), "model")
    for loop in inner:
        call = ast.parse(f"traceml_ai.trace_step({model})", mode="eval").body
        loop.body = [ast.With(items=[ast.withitem(context_expr=call)], body=loop.body)]
    after = 1 if isinstance(tree.body[0], ast.Expr) else 0
    tree.body[after:after] = ast.parse('import traceml_ai\ntraceml_ai.init(mode="auto")').body
    return ast.unparse(ast.fix_missing_locations(tree))


def _trains(loop: ast.For | ast.While) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in {"backward", "step"} for node in ast.walk(loop)) and (
        any(isinstance(node, ast.Attribute) and node.attr == "backward" for node in ast.walk(loop))
    )


def verdict(case: Case, folder: Path) -> str:
    """Return its primary verdict of a case, or why there is none."""
    found = program()
    if found is None:
        return "not installed"
    name = "".join(letter if letter.isalnum() else "-" for letter in case.name)
    work = folder / f"peer-{name}"
    work.mkdir(parents=True)
    script = work / case.script
    script.write_text(with_lines((SCRIPTS / case.script).read_text()), encoding="utf-8")
    command = [found, "run", str(script), "--mode", "summary", "--logs-dir", str(work), "--run-name", "peer"]
    command += ["--aggregator-port", str(free_port()), "--master-port", str(free_port())]
    command += ["--nproc-per-node", str(case.ranks), "--args", *case.arguments]
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        with (work / "output.txt").open("wb") as output:
            subprocess.run(command, cwd=work, env=settings, stdout=output, stderr=output, timeout=DEADLINE, check=False)
        told = json.loads((work / "peer" / "final_summary.json").read_text())
    except subprocess.TimeoutExpired:
        return "no end"
    except (OSError, ValueError):
        return "no summary"
    return str((told.get("primary_diagnosis") or {}).get("kind", "nothing")).lower()


def is_right(case: Case, said: str) -> bool:
    """Say whether its verdict means one that is right."""
    words = {word for kind in case.kinds for word in SAME.get(kind, {kind.upper()})}
    return said.upper() in words
