from __future__ import annotations

import pytest

from stepscope.analysis.cost.prices import TABLE, load
from stepscope.core.errors import UsageError


@pytest.fixture(scope="module")
def prices():
    """Return the table that comes with Stepscope."""
    return load()


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("l40s", "L40S"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_cards_are_known_by_the_drivers_name(prices, name, card):
    """A card is found by the name that its driver gives, and the more special entry wins."""
    assert prices.card(name).name == card


def test_unknown_card(prices):
    """A card that the table has not is none; a part of a word is no card."""
    assert prices.card("Quadro FX 1") is None
    assert prices.card("L400") is None


@pytest.mark.promise("S2-065")
def test_price_is_an_amount_a_card_or_a_providers(prices):
    """A price is given as an amount in a currency, as a card, or as a provider's card, and says where it is from."""
    assert (prices.price("2.5").per_hour, prices.price("2.5").currency) == (2.5, "USD")
    assert (prices.price("€1.2").currency, prices.price("3 CHF").currency) == ("EUR", "CHF")
    aws, median = prices.price("aws/H100"), prices.price("H100")
    assert aws.per_hour == prices.card("H100").prices["aws"]
    assert min(median.card.prices.values()) <= median.per_hour <= max(median.card.prices.values())
    assert "aws" in aws.source


@pytest.mark.parametrize("text", ["", "-3", "nan", "abacus", "nobody/H100", "1e9999"])
def test_what_is_no_price_is_refused(prices, text):
    """What means no price is a usage error that says what to choose of."""
    with pytest.raises(UsageError):
        prices.price(text)


def test_regions_have_names_and_codes(prices):
    """A region is found by name or code, whatever its case; one that is not there is none."""
    assert prices.region("Germany") == prices.region("de") == prices.region("DE")
    assert prices.region("norway") < prices.region("world") < prices.region("India")
    assert prices.region("atlantis") is None


def test_table_can_be_replaced(tmp_path):
    """A copy that people edit is read like our own; a file that is no table says so."""
    own = tmp_path / "prices.yaml"
    own.write_text(TABLE.read_text().replace("T4:            {", "Abacus:        {"))
    assert load(own).card("abacus").memory_gib == 16
    own.write_text("cards: {H100: 3}\nregions: {}\n")
    with pytest.raises(UsageError, match="not a price table"):
        load(own)
    with pytest.raises(UsageError):
        load(tmp_path / "absent.yaml")
