"""Show where a run's time, money and energy went: every second of every attempt belongs to one class.

The classes sum to the wall clock. --price converts the time to cost: the price of one GPU hour (2.5, '2.5 EUR'), or
a GPU of the price table (H100, aws/H100). RUN is the folder of a run, its id or a unique prefix of it, project/id, its
display name, or 'latest'; or a file of another tool (`stepscope import` lists them), where time that its log does not
cover is unknown.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.command import add_shared, show
from stepscope.cli.named_run import resolve
from stepscope.cli.text.progress import progress
from stepscope.cli.text.sheet import Sheet
from stepscope.cli.text.table import Cell, Column, table
from stepscope.cli.text.terminal import bar
from stepscope.core.config import discover, load_or_default
from stepscope.core.errors import UsageError
from stepscope.core.numbers import format_duration, format_items, format_money, format_share, format_value
from stepscope.core.terminal_text import cut, plain
from stepscope.sources.source import RUN

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from stepscope.store.reader import Past

STYLES = {
    "productive": "green",
    **dict.fromkeys(("stall", "restart", "redone"), "red"),
    **dict.fromkeys(("data", "copy", "start", "other"), "yellow"),
}


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_shared(parser, "run", "dir")
    text = "price of one GPU hour: an amount, a GPU, or provider/GPU (default: ledger.price, or the run's own GPU)"
    parser.add_argument("--price", metavar="PRICE", help=text)
    text = "region of the electricity, for its CO₂ (default: ledger.region of the configuration, or world)"
    parser.add_argument("--region", metavar="NAME", help=text)
    parser.add_argument("--steps", metavar="N", type=int, help="total steps of the run, to forecast its end")
    add_shared(parser, "quiet", "json")


def run(options: argparse.Namespace) -> int:
    """Print the ledger."""
    source = resolve(options.run, options.dir)
    with progress(f"reading {plain(options.run, 40)}", options=options), source.opened() as past:
        facts = _account(past, options, str(past.path) if source.kind == RUN else source.path)
    return show(options, facts, lambda *page: LedgerSheet(facts, *page).lines())


def _account(past: Past, options: argparse.Namespace, path: str) -> dict[str, Any]:
    from stepscope.analysis.cost import prices  # loads numpy: a run that is not found needs none
    from stepscope.views.ledger import LedgerOptions, account, card_name

    config = load_or_default(discover(Path.cwd(), os.environ), environ=os.environ)
    known = prices.load(config.get("ledger.prices") or None)
    wanted = options.price or config.get("ledger.price") or card_name(past, known)
    region = options.region or config.get("ledger.region")
    if known.region(region) is None:
        some = ", ".join(sorted(known.regions))
        raise UsageError(f"find the region {region!r}", f"{known.path} has no such region", f"choose of {some}")
    if options.steps is not None and options.steps < 1:
        what = f"forecast {options.steps} steps"
        raise UsageError(what, "a run has at least one step", "give the total number of steps")
    question = LedgerOptions(known, known.price(wanted) if wanted else None, region, options.steps)
    about = {"id": past.id, "name": past.name, "project": past.project, "path": path, "state": past.state}
    return {"run": about, **account(past, question)}


class LedgerSheet(Sheet):
    """The ledger as lines of a given width."""

    label_width = 12

    def lines(self) -> Iterator[str]:
        """Yield the page."""
        parts = (self._head, self._table, self._attempts, self._waste, self._forecast, self._advice)
        yield from (line for part in parts for line in part())

    def _wrapped(self, text: str, indent: str = "  ") -> list[str]:
        return textwrap.wrap(plain(text), self._width, initial_indent=indent, subsequent_indent=indent)

    def _head(self) -> Iterator[str]:
        facts, about = self._facts, self._facts["run"]
        yield f"{self._paint(cut(plain(about['name']), self._width - 14), 'bold')}  {about['state']}"
        part = f" (read: {facts['read_ranks']})" if facts["read_ranks"] < facts["ranks"] else ""
        parts = [format_items(len(facts["attempts"]), "attempt"), f"{format_items(facts['ranks'], 'rank')}{part}"]
        parts.append(format_items(facts["devices"], "GPU" if facts["device"] == "gpu" else "machine"))
        source = facts["imported"]
        summed = ", added up, because its log has no clock times" if source is not None and not source["timed"] else ""
        yield self._fact("wall clock", f"{format_duration(facts['wall_seconds'])}{summed}; {', '.join(parts)}")
        good = facts["goodput_ratio"]
        yield self._fact("goodput", "no steps recorded" if good is None else self._goodput(good))
        yield self._fact("money", self._price())
        yield self._fact("energy", self._energy())

    def _goodput(self, good: float) -> str:
        dark = self._facts["seconds"]["unknown"] / (self._facts["paid_seconds"] or 1.0)
        if dark < 0.001:
            return f"{format_value(good, 'ratio')} of the time was productive"
        return f"at least {format_value(good, 'ratio')} productive; {format_value(dark, 'ratio')} is missing in its log"

    def _price(self) -> str:
        money = self._facts["money"]
        if money is None:
            return "no price is set; --price 2.5 or --price H100"
        wasted = f", {format_money(money['wasted'])} of it wasted" if money["wasted"] else ""
        rate = f"{money['per_device_hour']:g} an hour, {money['source']}"
        return f"{format_money(money['total'])} {money['currency']}{wasted} ({rate})"

    def _energy(self) -> str:
        used = self._facts["energy"]
        if used is None:
            return "no meter: neither GPUs nor processors report power"
        co2 = "" if used["co2_kg"] is None else f", {used['co2_kg']:.3g} kg CO₂ ({used['region']})"
        seen = "" if used["covered_ratio"] > 0.98 else f", seen {format_share(used['covered_ratio'])} of the time"
        return f"{used['kwh']:.3g} kWh{co2} by {', '.join(used['sources'])}{seen}"

    def _table(self) -> Iterator[str]:
        yield from self._title("Where the time went", "the classes sum to the wall clock")
        facts, money, used = self._facts, self._facts["money"], self._facts["energy"]
        wall = facts["wall_seconds"]
        shape = [Column("class"), Column("time", right=True), Column("share", right=True), Column("", optional=True)]
        shape += [Column(money["currency"] if money else "", right=True), Column("kWh" if used else "", right=True)]
        rows: list[list[Cell | str]] = []
        for name, seconds in facts["seconds"].items():
            if seconds <= 0:
                continue
            share = seconds / wall
            cost = format_money(money["classes"][name]) if money else ""
            joules = f"{used['joules'][name] / 3.6e6:.3g}" if used else ""
            painted = Cell(bar(share, max(8, min(30, self._width - 50))), STYLES.get(name, "blue"))
            rows.append([_spoken(name), format_duration(seconds), format_value(share, "ratio"), painted, cost, joules])
        total = [format_money(money["total"]) if money else "", f"{used['kwh']:.3g}" if used else ""]
        rows.append([Cell("all", "bold"), format_duration(wall), "100 %", "", *total])
        yield from table(shape, rows, self._width, self._paint, 2)

    def _attempts(self) -> Iterator[str]:
        attempts = self._facts["attempts"]
        if len(attempts) < 2:
            return
        yield from self._title("Attempts", "each from the end of the previous attempt")
        shape = [Column("attempt", right=True), Column("state"), Column("took", right=True)]
        shape += [Column(title, right=True) for title in ("productive", "restart", "redone")]
        rows: list[list[Cell | str]] = []
        for one in attempts[-12:]:
            figures = [format_duration(one["classes"][name]) for name in ("productive", "restart", "redone")]
            rows.append([str(one["attempt"]), plain(one["state"]), format_duration(one["seconds"]), *figures])
        yield from table(shape, rows, self._width, self._paint, 2)

    def _waste(self) -> Iterator[str]:
        found = [one for one in self._facts["wasted"] if (one["share"] or 0) >= 0.01][:4]
        if not found:
            return
        money = self._facts["money"]
        yield from self._title("Wasted most on")
        for one in found:
            cost = f", {format_money(money['classes'][one['class']])} {money['currency']}" if money else ""
            spent = f"{_spoken(one['class'])}: {format_duration(one['seconds'])} ({format_share(one['share'])}{cost})"
            yield from self._wrapped(f"{spent}; {one['remedy']}")

    def _forecast(self) -> Iterator[str]:
        found = self._facts["forecast"]
        if found is None:
            return
        span = f"{format_duration(found['low'])} to {format_duration(found['high'])}"
        yield from self._title("End of the run", f"in {format_duration(found['seconds'])} ({span})")
        cost = "" if found["money"] is None else f"; {format_money(found['money'])} more to spend"
        yield from self._wrapped(f"{found['text']}{cost}")

    def _advice(self) -> Iterator[str]:
        if not self._facts["advice"]:
            return
        yield from self._title("Advice")
        for one in self._facts["advice"][:6]:
            gain = one["gain_ratio"]
            mark = self._paint("!" if one["severity"] != "info" else "-", "yellow")
            first, *rest = self._wrapped(one["text"], "    ")
            yield f"  {mark} {first.strip()}"
            yield from rest
            brings = f" (saves at most {format_share(gain)})" if gain else ""
            yield from (self._paint(line, "dim") for line in self._wrapped(f"{one['remedy']}{brings}", "    "))


def _spoken(name: str) -> str:
    return "redone work" if name == "redone" else name
