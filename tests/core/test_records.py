from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.records import RECORD, WORD_SEQUENCE, groups, heads, whole_records

KINDS = st.tuples(st.integers(0, 6), st.sampled_from([1, 3, 16, 17, 18]))
"""Values of a row, and its schema."""


def pack(kinds):
    """Return records of these kinds, one after another."""
    heads = enumerate(kinds)
    return b"".join(
        RECORD.pack(32 + 8 * width, schema, at, 1000 + at, at) + bytes(8 * width) for at, (width, schema) in heads
    )


def listed(data):
    """Return (offset, schema, sequence) of each record that is in a group, in order."""
    return sorted(
        (at, group.schema, sequence)
        for group in groups(data)
        for at, sequence in zip(group.offsets(), group.column(data, WORD_SEQUENCE), strict=True)
    )


@given(pattern=st.lists(KINDS, min_size=1, max_size=10), turns=st.integers(0, 60), rest=st.lists(KINDS, max_size=20))
def test_groups_hold_every_record_once(pattern, turns, rest):
    """Whatever patterns records have, groups list what a walk from one to the next does."""
    data = pack(pattern * turns + rest)
    assert listed(data) == [head[:1] + head[2:4] for head in heads(data)]
    assert whole_records(data) == (len(data), True)


@given(st.lists(KINDS, max_size=40), st.binary(max_size=80))
def test_nonsense_ends_the_records(kinds, rest):
    """What follows the last whole record, whatever it is, is no group of its own and no error."""
    data = pack(kinds) + rest
    assert listed(data) == [head[:1] + head[2:4] for head in heads(data[: whole_records(data)[0]])]
    assert whole_records(data)[0] >= len(data) - len(rest)


def test_padding_is_a_good_end():
    """Zeros behind the records are padding; anything else that is no record is not understood."""
    assert whole_records(pack([(1, 16)]) + bytes(40)) == (40, True)
    assert whole_records(pack([(1, 16)]) + b"\7" * 40) == (40, False)


def test_a_burst_is_one_group_or_few():
    """Many rows of one kind are read as columns, not one by one."""
    found = groups(pack([(1, 16)] * 1600))
    assert sum(group.size for group in found) == 1600
    assert len(found) < 8
    assert {(group.stride, group.length, group.schema) for group in found} == {(40, 40, 16)}
