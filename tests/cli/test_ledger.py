from __future__ import annotations

import json

import numpy as np
import pytest

from stepscope.analysis.cost.energy import JOULES_PER_KWH
from stepscope.analysis.cost.ledger import CLASSES, WASTE
from stepscope.analysis.cost.prices import load
from stepscope.cli.commands.ledger import LedgerSheet
from stepscope.cli.main import main
from stepscope.cli.text.terminal import Paint
from stepscope.core.terminal_text import width_of
from stepscope.store.states import NodeState, RankState
from stepscope.views.ledger import REMEDIES, LedgerOptions, account
from tests.store.recorded import Recorded

SECOND = 10**9
BEGAN = 1_700_000_000


class Machine(Recorded):
    """A recorded run of a simulated hour on two GPUs, under a clock of its own."""

    def __init__(self, path):
        super().__init__(path)
        names = ("utilization_ratio", "memory_used_bytes", "memory_total_bytes", "energy_joules_total")
        for second in range(0, 3601, 10):
            used = 0.3, (10 + 4 * second / 3600) * 2.0**30, 80 * 2.0**30, 1e6 + 250.0 * second
            row = {f"gpu/{gpu}/{name}": value for gpu in (0, 1) for name, value in zip(names, used, strict=True)}
            self.drain_.own.add(row, second * SECOND)
        self.drain_.write_own((BEGAN * SECOND, 0))
        rank = RankState("finished", started=BEGAN * 10**6, ended=(BEGAN + 3600) * 10**6)
        NodeState(self.writer.node, 0, ended=True, ranks={0: rank}).save(self.folder)


@pytest.fixture
def facts(tmp_path):
    """Return the ledger of that run at 2 dollars an hour, in a region of 500 g."""
    table = load()
    question = LedgerOptions(table, table.price("aws/H100"), "world")
    return account(Machine(tmp_path).past(), question)


def test_every_waste_has_a_remedy(facts):
    """Each class that is waste says what would help, and what it is."""
    assert set(REMEDIES) == set(WASTE)
    assert all(one["remedy"] and facts["classes"][one["class"]] for one in facts["wasted"])


def test_money_and_energy_of_a_run(facts):
    """Two GPUs for an hour cost twice the price; their counters give the energy, and the region its CO₂."""
    assert facts["devices"] == 2
    assert facts["wall_seconds"] == pytest.approx(3600)
    price = facts["money"]["per_device_hour"]
    assert facts["money"]["total"] == pytest.approx(2 * price)
    assert facts["energy"]["kwh"] == pytest.approx(2 * 250 * 3600 / JOULES_PER_KWH)
    assert facts["energy"]["co2_kg"] == pytest.approx(facts["energy"]["kwh"] * 0.481)
    assert facts["energy"]["sources"] == ["gpu 0", "gpu 1"]
    assert facts["energy"]["covered_ratio"] == pytest.approx(1.0)


def test_advice_has_the_leak_and_the_size(facts):
    """Memory that grows on the GPUs is told with its end, and that they idle, with what other sizes would save."""
    kinds = [one["kind"] for one in facts["advice"]]
    assert kinds.count("leak") == 2
    assert {"fewer_gpus", "cheaper_card"} <= set(kinds)
    leak = next(one for one in facts["advice"] if one["kind"] == "leak")
    assert leak["evidence"]["left"] == pytest.approx(66 / 4 * 3600, rel=0.05)


@pytest.mark.parametrize("width", [80, 120])
def test_page_fits_its_width(facts, width):
    """The ledger fits the terminal, in plain text where there is no colour."""
    about = {"id": "x", "name": "a run", "project": "p", "path": "/x", "state": "finished"}
    lines = list(LedgerSheet({"run": about, **facts}, width, Paint()).lines())
    assert max(map(width_of, lines)) <= width
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert all(word in text for word in ("goodput", "kWh", "USD", "Advice"))


def test_command_prints_json_and_refuses_what_it_does_not_know(tmp_path, capsys):
    """--json has every class; a price, a region or a number of steps that means nothing is wrong usage."""
    path = str(Machine(tmp_path).folder.path)
    assert main(["ledger", path, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts["seconds"]) == list(CLASSES)
    assert facts["money"] is None
    assert np.isclose(sum(facts["seconds"].values()), facts["wall_seconds"], rtol=1e-6)
    for wrong in (["--price", "abacus"], ["--region", "atlantis"], ["--steps", "0"]):
        assert main(["ledger", path, *wrong]) == 2
        assert "stepscope: cannot" in capsys.readouterr().err


def test_prices_of_the_configuration(tmp_path, capsys, monkeypatch):
    """The price and the region can stand in the configuration, and so can a table of one's own."""
    path = str(Machine(tmp_path).folder.path)
    own = tmp_path / "own.yaml"
    own.write_text("currency: EUR\ncards: {Abacus: {memory_gib: 1, tflops: 1, prices: {me: 4}}}\nregions: {home: 10}\n")
    (tmp_path / "stepscope.yaml").write_text(f"ledger: {{price: Abacus, prices: {own}, region: home}}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["ledger", path, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["money"]["total"], facts["money"]["currency"]) == (pytest.approx(8.0), "EUR")
    assert facts["energy"]["grams_per_kwh"] == 10
