"""Run the Python blocks of one document, one after another, and print what went wrong as JSON. A program of its own."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from tests.documents import seeds, supplied

KNOWN = ("stepscope.monitor", "stepscope.profiling", "stepscope.metrics")


def ours(code, space):
    """Return the names of ours that a block uses without importing them, as later blocks of a document do."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    found = {}
    for module in map(importlib.import_module, KNOWN):
        found |= {name: getattr(module, name) for name in module.__all__ if name in used and name not in space}
    return found


def given(code):
    """Return what a block assumes besides: Transformers' Trainer with its arguments, if it makes one."""
    if "Trainer(" not in code:
        return {}
    from transformers import Trainer, TrainingArguments

    return {"Trainer": Trainer, "training_args": TrainingArguments(output_dir="out", report_to=[], use_cpu=True)}


def configuration(document):
    """Write the configuration file that a document shows, for the block that reads it."""
    text = next(block.code for block in seeds.blocks("yaml") if block.document == document)
    Path("monitoring_config.yaml").write_text(text, encoding="utf-8")


def run(block, space):
    """Run a block as it is pasted, its imports adjusted; call what it only defines, build what it only configures."""
    from stepscope.monitor import TrainingMonitor

    code = seeds.adjusted(block.code)
    space |= supplied.names() | given(code)
    space |= ours(code, space)
    exec(compile(code, block.place, "exec"), space)  # it is what this test is for
    if "train_model_with_monitoring" in code:
        space["train_model_with_monitoring"]()
    if code.lstrip().startswith(("config =", "#")) and "\nconfig = {" in f"\n{code}":
        TrainingMonitor(space["config"]).start_monitoring()
    if block.place.startswith("001") and "monitor" not in space:
        raise AssertionError("no monitor")


def main(document):
    """Run them all; print how many ran, and the failures by line."""
    import stepscope

    if document == "001":
        configuration(document)
    failed, ran, space = {}, 0, {"__name__": "documents"}
    for block in seeds.blocks("python"):
        if block.document != document or block.later:
            continue
        try:
            run(block, space)
            ran += 1
        except Exception:  # noqa: BLE001 - whatever a block raises is the answer
            failed[block.line] = traceback.format_exc()
    monitor = space.get("monitor")
    if hasattr(monitor, "stop_monitoring"):
        monitor.stop_monitoring()
    stepscope.finish()
    print("\n" + json.dumps({"ran": ran, "failed": failed}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
