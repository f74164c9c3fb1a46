"""What a script was called with."""

from __future__ import annotations

import argparse
import enum
import pathlib
import sys
from types import SimpleNamespace

import pytest

from stepscope.session.script_config import follow_argparse, follow_hydra, plain


class Colour(enum.Enum):
    """Of a car."""

    RED = 1


class Hostile:
    """An object that must not be touched."""

    def __repr__(self):
        raise AssertionError


@pytest.fixture
def kept():
    """What was handed on."""
    return []


@pytest.fixture
def parser(kept, monkeypatch):
    """A parser of a class that is followed, in a program called with --lr 0.5."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.5"])
    own = type("Parser", (argparse.ArgumentParser,), {})
    follow_argparse(kept.append, own)
    found = own(exit_on_error=False)
    found.add_argument("--lr", type=float)
    return found


def test_values_of_the_command_line_are_kept(parser, kept):
    """Whichever way the program asks, it gets what it gets without us, and the values are kept once for each call."""
    parser.add_argument("--unset")
    assert parser.parse_args().lr == 0.5
    assert parser.parse_known_args(["--lr", "0.5"])[0].lr == 0.5
    assert kept == [{"lr": 0.5, "unset": None}] * 2


def test_parsers_of_other_texts_are_left_alone(parser, kept):
    """A parser that reads something else than the program's arguments says nothing of the run."""
    parser.parse_args(["--lr", "9"])
    assert kept == []


def test_values_of_a_sub_command_come_with_the_others(kept, monkeypatch):
    """The parsers of sub-commands are part of one call."""
    monkeypatch.setattr(sys, "argv", ["train.py", "fit", "--epochs", "3"])
    own = type("Parser", (argparse.ArgumentParser,), {})
    follow_argparse(kept.append, own)
    parser = own()
    fit = parser.add_subparsers(dest="command").add_parser("fit")
    fit.add_argument("--epochs", type=int)
    fit.set_defaults(run=print)
    assert parser.parse_args().run is print
    assert kept == [{"command": "fit", "epochs": 3}]


def test_an_error_of_the_parser_is_its_own(parser, kept):
    """Wrong arguments raise what they raise without us, and the next call works."""
    with pytest.raises(argparse.ArgumentError):
        parser.parse_args(["--lr", "much"])
    parser.parse_args()
    assert kept == [{"lr": 0.5}]


def test_what_goes_wrong_here_does_not_reach_the_program(monkeypatch, capsys):
    """Whoever keeps the values may fail: the program has them all the same, and one line says so."""
    monkeypatch.setattr(sys, "argv", ["train.py"])
    own = type("Parser", (argparse.ArgumentParser,), {})
    follow_argparse(lambda _: 1 / 0, own)
    parser = own()
    parser.add_argument("--lr", default=1)
    assert parser.parse_args().lr == 1
    assert "cannot read the settings of the script: ZeroDivisionError" in capsys.readouterr().err


def test_only_plain_data_is_kept():
    """Paths and enumerations are texts; functions and other objects are left out without a look at them."""
    given = {"path": pathlib.Path("a"), "colour": Colour.RED, "some": (1, "b", None), "odd": Hostile(), "run": print}
    assert plain(given) == {"path": "a", "colour": "RED", "some": [1, "b", None]}
    endless: list = []
    endless.append(endless)
    assert plain({"x": endless})["x"]
    assert len(plain("x" * 10**6)) == 2000


def test_hydra_tells_its_configuration(kept):
    """What Hydra composes is kept as written, without its own part."""
    conf = pytest.importorskip("omegaconf", reason="comes with Hydra").OmegaConf
    module = SimpleNamespace(HydraConfig=type("HydraConfig", (), {"set_config": lambda self, cfg: ("set", cfg)}))
    follow_hydra(module, kept.append)
    cfg = conf.create({"lr": 0.1, "model": {"width": "${lr}"}, "hydra": {"job": 1}})
    assert module.HydraConfig().set_config(cfg) == ("set", cfg)
    assert kept == [{"lr": 0.1, "model": {"width": "${lr}"}}]
