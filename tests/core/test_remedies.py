"""The words that say what to do: one for every kind, with its fields filled in."""

from __future__ import annotations

import string

from stepscope.analysis import grpo
from stepscope.analysis.diagnosis.kinds import KINDS
from stepscope.core.remedies import REMEDIES, remedy

HARMLESS = {"none"}


def test_every_kind_of_finding_has_a_remedy() -> None:
    """And no remedy is for a kind that does not exist."""
    assert {key.partition("/")[0] for key in REMEDIES} == set(KINDS) - HARMLESS - set(grpo.KINDS)
    assert set(grpo.REMEDIES) == set(grpo.KINDS)


def test_fields_are_filled_in_and_a_missing_one_never_shows() -> None:
    """A text whose fields are not known gives way to that of its kind, or to none."""
    told = remedy("input_bound", "workers", workers=1, load="90 ms", rest="7 ms", wanted=16)
    assert "num_workers=16 would keep up" in told
    assert remedy("input_bound", "workers") == REMEDIES["input_bound"]
    assert remedy("input_bound", "unheard of") == REMEDIES["input_bound"]
    assert remedy("loss_spike") == remedy("nothing of that kind") == ""


def test_remedies_are_sentences_without_loose_ends() -> None:
    """Each begins small, ends without a stop, as the command prints them, and names its fields plainly."""
    for key, text in REMEDIES.items():
        assert text == text.strip(), key
        assert not text.endswith((".", ";")), key
        assert all(field is None or field.isidentifier() for _, field, _, _ in string.Formatter().parse(text)), key
