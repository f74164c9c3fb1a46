"""Explain why a run is slow or failed, how certain that is, what to do, and the expected gain.

RUN is the folder of a run, its id or a unique prefix of it, project/id, its display name,
'latest', or a file or folder recorded by another tool (trainer_state.json, TensorBoard events, a W&B run,
MLLOG, a log with steps and losses).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import FINE, add_shared, print_json
from stepscope.cli.named_run import resolve
from stepscope.cli.text.diagnosis_lines import lines
from stepscope.cli.text.progress import progress
from stepscope.cli.text.terminal import Paint, columns
from stepscope.core.config import discover, load_or_default
from stepscope.core.terminal_text import plain

if TYPE_CHECKING:
    import argparse

    from stepscope.analysis.cost.prices import Price


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_shared(parser, "run", "dir")
    text = "price of one GPU hour: an amount, a GPU, or provider/GPU (default: ledger.price of the configuration)"
    parser.add_argument("--price", metavar="PRICE", help=text)
    parser.add_argument("--all", action="store_true", help="also show all changes and all missing signals")
    add_shared(parser, "quiet", "json")


def run(options: argparse.Namespace) -> int:
    """Print the verdict."""
    with progress(f"diagnosing {plain(options.run, 40)}", options=options):
        found = resolve(options.run, options.dir).diagnoses()
    price = _price(options.price)
    for facts in found:
        if price is not None:
            _add_money(facts, price)
    if options.json:
        print_json(found[0] if len(found) == 1 else {"runs": found})
        return FINE
    for number, facts in enumerate(found):
        if number:
            print()
        print("\n".join(lines(facts, columns(), Paint.of(), everything=options.all)))
    return FINE


def _price(wanted: str | None) -> Price | None:
    config = load_or_default(discover(Path.cwd(), os.environ), environ=os.environ)
    asked = wanted or config.get("ledger.price")
    if not asked:
        return None
    from stepscope.analysis.cost import prices

    return prices.load(config.get("ledger.prices") or None).price(asked)


def _add_money(facts: dict[str, Any], price: Price) -> None:
    """Add the cost of each finding in money, for all devices of the run."""
    for one in facts["findings"]:
        seconds = one["cost_seconds"]
        if seconds is not None:
            amount = seconds / 3600 * price.per_hour * facts["devices"]
            one["cost_money"] = {"amount": amount, "currency": price.currency}
