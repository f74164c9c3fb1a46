"""Prices of GPUs per hour and CO₂ per kilowatt-hour, from a data file that users can replace."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from stepscope.core.errors import UsageError

TABLE = Path(__file__).parent / "data" / "prices.yaml"
"""The built-in table; `ledger.prices` of the configuration names another."""
_AMOUNT = re.compile(r"(?P<sign>[$€£]?)\s*(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?P<code>[A-Z]{3})?")
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "": ""}


@dataclass(frozen=True)
class PricedGpu:
    """A kind of GPU."""

    name: str
    memory_gib: float
    tflops: float
    """Dense bfloat16 (or float16) operations in 10**12 per second, as the vendor states them."""
    prices: dict[str, float]
    """By provider: for one GPU and hour, including its share of the machine."""

    @property
    def price(self) -> float:
        """The median of the providers' prices."""
        return median(self.prices.values())


@dataclass(frozen=True)
class Price:
    """The price of an hour of one device."""

    per_hour: float
    currency: str
    source: str
    """Its source, in words."""
    card: PricedGpu | None = None
    provider: str = ""


@dataclass(frozen=True)
class PriceTable:
    """Prices and regions."""

    cards: tuple[PricedGpu, ...]
    """The most specific name first."""
    regions: dict[str, float]
    """Grams of CO₂ per kilowatt-hour, by region name in lower case."""
    currency: str = "USD"
    as_of: str = ""
    path: str = ""
    aliases: dict[str, str] = field(default_factory=dict)
    """Other names of regions, such as those of cloud providers."""

    def card(self, name: str) -> PricedGpu | None:
        """Return the GPU of that name, in the spelling of the driver or of people; None if it is not in the table."""
        words = _words(name)
        return next((card for card in self.cards if _words(card.name) <= words), None)

    def region(self, name: str) -> float | None:
        """Return the grams of CO₂ per kilowatt-hour in a region; None if it is not in the table."""
        small = name.strip().lower()
        return self.regions.get(self.aliases.get(small, small))

    def price(self, text: str) -> Price:
        """Return the price that a text means: `2.5`, `2.5 EUR`, `H100` or `aws/H100`.

        Raises:
            UsageError: it is neither an amount nor a GPU in the table, or the provider does not offer it.
        """
        amount = _AMOUNT.fullmatch(text.strip())
        if amount:
            currency = amount["code"] or _SIGNS[amount["sign"]] or self.currency
            return Price(float(amount["number"]), currency, "as given")
        provider, slash, name = text.partition("/")
        what, card = f"find the price of {text!r}", self.card(name if slash else text)
        if card is None:
            known = ", ".join(card.name for card in self.cards)
            raise UsageError(what, "it is neither an amount nor a GPU in the table", f"known: {known}")
        if not slash:
            source = f"{card.name}, median of {', '.join(sorted(card.prices))}, {self.as_of}"
            return Price(card.price, self.currency, source, card)
        provider = provider.strip().lower()
        found = card.prices.get(provider)
        if found is None:
            some = ", ".join(sorted(card.prices))
            raise UsageError(what, f"{provider} has none in the table", f"choose one of {some}")
        return Price(found, self.currency, f"{card.name} of {provider}, {self.as_of}", card, provider)


def _words(name: str) -> set[str]:
    """Return the words of a GPU's name: `NVIDIA A100-SXM4-80GB` has A100, SXM, 80GB."""
    parts = re.split(r"[^a-z0-9]+", name.lower())
    return {re.sub(r"^(sxm|pcie?)\d*$", r"\1", part) for part in parts if part}


def load(path: str | Path | None = None) -> PriceTable:
    """Read a price table; by default the built-in table.

    Raises:
        UsageError: the file cannot be read, or is not a price table.
    """
    from stepscope.core.yaml_text import read_file  # PyYAML, only if needed

    file = Path(path) if path else TABLE
    data: Any = read_file(file).data
    try:
        cards = tuple(_card(str(name), facts) for name, facts in data["cards"].items())
        regions = {str(name).lower(): _number(grams) for name, grams in data["regions"].items()}
        aliases = {str(name).lower(): str(region).lower() for name, region in (data.get("aliases") or {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        cause = f"it is not a price table ({type(error).__name__}: {error})"
        raise UsageError(f"read {file}", cause, f"write it like {TABLE}") from error
    by_detail = tuple(sorted(cards, key=lambda card: -len(_words(card.name))))
    currency, as_of = str(data.get("currency", "USD")), str(data.get("as_of", ""))
    return PriceTable(by_detail, regions, currency, as_of, str(file), aliases)


def _card(name: str, facts: Any) -> PricedGpu:
    prices = {str(provider).lower(): _number(price) for provider, price in facts["prices"].items()}
    if not prices:
        raise ValueError(f"{name} has no price")
    return PricedGpu(name, _number(facts["memory_gib"]), _number(facts["tflops"]), prices)


def _number(value: Any) -> float:
    number = float(value)
    if not 0 <= number < 1e9:
        raise ValueError(f"{value} is not an amount")
    return number
