"""The cost of a run, if its GPUs have a price: from the configuration, else from the built-in table."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.analysis.cost import prices
from stepscope.core.config import discover, load_or_default
from stepscope.core.errors import StepscopeError
from stepscope.views.ledger import LedgerOptions, account

if TYPE_CHECKING:
    from stepscope.analysis.cost.prices import Price, PriceTable
    from stepscope.store.reader import Past


@functools.cache
def _settings() -> tuple[PriceTable, str, str]:
    """Return the configured table, price and region; read once."""
    config = load_or_default(discover(Path.cwd(), os.environ), environ=os.environ)
    try:
        table = prices.load(config.get("ledger.prices") or None)
    except StepscopeError:  # `stepscope ledger` reports what is wrong with the file
        table = prices.load(None)
    return table, str(config.get("ledger.price") or ""), str(config.get("ledger.region") or "")


def card_name(past: Past, known: PriceTable) -> str | None:
    """Return the name of the run's GPU, if it has one and the table lists it."""
    names = (name for machine in past.machines() for name in machine.devices.values())
    return next((name for name in names if known.card(name) is not None), None)


def price_of(past: Past) -> Price | None:
    """Return the hourly price of one device of the run; None if unknown."""
    table, configured, _ = _settings()
    wanted = configured or card_name(past, table)
    try:
        return table.price(wanted) if wanted else None
    except StepscopeError:  # `stepscope ledger` reports what is wrong with the price
        return None


def usual_account(past: Past) -> dict[str, Any]:
    """Return the ledger of a run with the configured prices and region."""
    table, _, region = _settings()
    question = LedgerOptions(table, price_of(past), region if table.region(region) is not None else "")
    return account(past, question)


def cost(past: Past, seconds: float | None) -> dict[str, Any] | None:
    """Return the cost of a run so far: its duration on its GPUs, or on its machines if a price is configured."""
    price = price_of(past)
    if price is None or not seconds:
        return None
    last = max((machine.attempt for machine in past.machines()), default=0)
    devices = sum(
        sum(what.startswith("gpu/") for what in machine.devices)
        for machine in past.machines()
        if machine.attempt == last
    )
    return {"amount": price.per_hour * max(devices, 1) * seconds / 3600, "currency": price.currency}
