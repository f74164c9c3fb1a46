"""The words that say what to do: one for every kind, with its fields filled in."""

from __future__ import annotations

import re
import string

from stepscope.analysis.diagnosis import grpo
from stepscope.analysis.diagnosis.verdict import KINDS
from stepscope.core.remedies import ALARMS, REMEDIES, remedy

HARMLESS = {"none"}


def test_every_kind_of_finding_has_a_remedy() -> None:
    """And no remedy is for a kind that does not exist."""
    assert {key.partition("/")[0] for key in REMEDIES} == set(KINDS) - HARMLESS - set(grpo.KINDS)
    assert set(grpo.REMEDIES) == set(grpo.KINDS)


def test_fields_are_filled_in_and_a_missing_one_never_shows() -> None:
    """A text whose fields are not known gives way to that of its kind, which has a plain word for its own."""
    told = remedy("input_bound", "workers", workers=1, load="90 ms", rest="7 ms", wanted=16)
    assert "num_workers=16 would keep up" in told
    assert remedy("input_bound", "workers") == REMEDIES["input_bound"]
    assert remedy("input_bound", "unheard of") == REMEDIES["input_bound"]
    assert "the batch of step 7 " in remedy("loss_spike", step=7)
    assert "the batch of that step " in remedy("loss_spike")
    assert "check rank 3:" in remedy("straggler", rank=3)
    assert remedy("nothing of that kind") == ""


def test_the_text_of_a_kind_can_always_be_told() -> None:
    """Whoever knows no field of it, as an alert that only knows its rule, says the same with plain words."""
    for key in (*(key for key in REMEDIES if "/" not in key), *ALARMS):
        assert remedy(key), key
        assert "{" not in remedy(key), key


def test_remedies_are_sentences_without_loose_ends() -> None:
    """Each ends without a stop, as the command prints them, and names its fields plainly."""
    for key, text in {**REMEDIES, **ALARMS}.items():
        assert text == text.strip(), key
        assert not text.endswith((".", ";")), key
        assert all(field is None or field.isidentifier() for _, field, _, _ in string.Formatter().parse(text)), key


ADVICE = re.compile(
    r"\b(accumulate|add|balance|cache|call|change|check|clip|copy|drain|evaluate|find|freeze|fuse|give|go back|improve|"
    r"keep|leave out|load|log|look|lower|mark|move|normalise|pad|pin_memory|prepare|queue|raise|read|restart|resume|"
    r"return|run|save|scale|set|set_num_threads|sort|start|stop|take|use)\b|\w=True|`stepscope |num_workers=|bfloat16"
)
"""Verbs of advice, or names of settings."""


def test_every_remedy_says_what_to_do() -> None:
    """Each has something to do in it that is specific: a verb and at least six words, and no two are alike."""
    texts = {**REMEDIES, **ALARMS, **grpo.REMEDIES}
    for key, text in texts.items():
        assert ADVICE.search(text), key
        assert len(text.split()) >= 6, key
    assert len(set(texts.values())) == len(texts)
