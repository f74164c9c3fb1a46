"""The language of conditions: what it takes, what it refuses, and that nothing in it is ever executed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.alerts.rules import expression
from stepscope.alerts.rules.expression import ExpressionError, MetricNode, NumberNode, OperationNode, metrics_of, parse


def test_a_slash_without_spaces_belongs_to_a_name():
    """`a/b` is one metric, `a / b` divides two."""
    assert metrics_of(parse("phase/data / step_seconds > 30%")) == ["phase/data", "step_seconds"]


def test_percent_is_a_share():
    """90% is 0.9."""
    node = parse("cpu/usage_ratio > 90%")
    assert isinstance(node, OperationNode)
    assert node.operands[1] == NumberNode(0.9)


def test_quotes_take_any_name():
    """A name with spaces or a dash stands in quotes."""
    assert metrics_of(parse("'lm loss' > 1 and \"a-b\" < 2")) == ["lm loss", "a-b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("loss", "not a condition"),
        ("1 > 2", "names no metric"),
        ("a < b < c", "join two comparisons with 'and'"),
        ("meen(loss, 5) > 1", "did you mean 'mean'"),
        ("mean(loss) > 1", "needs a window"),
        ("mean(mean(loss, 5), 5) > 1", "a function inside"),
        ("loss > ", "ends too early"),
        ("loss and acc", "compare it with something"),
        ("(loss > 1", "its end where"),
        ("loss ~ 1", "means nothing here"),
        ("percentile(loss, 101, 5) > 1", "0 to 100"),
        ("mean(loss, 9000) > 1", "up to 8192"),
        ("mean(loss, 30 days) > 1", "goes on with|where"),
        ("baseline(loss, 30s) > 1", "in points"),
        ("loss > 5s", "outside a window"),
        ("()", "where a value belongs"),
        ("(loss > 1) + 1 > 2", "to a condition"),
    ],
)
def test_what_is_wrong_is_said(text, said):
    """Each mistake has words that lead to the right form."""
    with pytest.raises(ExpressionError, match=said):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000 + "a" + ")" * 100_000,
        "not " * 900 + "a > 1",
        "a" + "+a" * 2000 + " > 1",
        "a > 1" + " and a > 1" * 300,
        "(" * 40 + "a > 1" + ")" * 40,
        "x" * 5000,
    ],
)
def test_depth_and_length_are_bounded(text):
    """Rule S12: at most 32 levels, 4 KB, 300 parts; nothing recurses further."""
    with pytest.raises(ExpressionError, match=r"nested deeper|longer than|more than"):
        parse(text)


@pytest.mark.parametrize("text", ["loss.__class__ > 1", "__import__ > 1", "a.b.c.format_map > 1"])
def test_dunder_is_only_a_name(text):
    """Rule S12: a dotted word is the name of a metric and reaches no attribute."""
    assert isinstance(parse(text).operands[0], MetricNode)


@pytest.mark.parametrize("text", ["__import__('os') > 1", "eval(loss) > 1", "loss.mean(5) > 1", "loss[0] > 1"])
def test_nothing_else_can_be_called(text):
    """Rule S12: only the functions of the table; no calls on objects, no items."""
    with pytest.raises(ExpressionError):
        parse(text)


def test_no_eval_in_the_room():
    """Rule S12: nothing in the room evaluates or compiles text."""
    for path in Path(expression.__file__).parent.glob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {call.id for call in calls if isinstance(call, ast.Name)}
        assert not names & {"eval", "exec", "compile", "__import__"}, path


@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(text):
    """Whatever is written, the parser returns a tree or says what is wrong, and nothing else."""
    try:
        node = parse(text)
    except ExpressionError:
        return
    assert isinstance(node, expression.Node)


WORDS = st.sampled_from(
    [
        *expression.FUNCTIONS,
        "loss",
        "gpu/*/x",
        "and",
        "or",
        "not",
        "(",
        ")",
        ",",
        ">",
        "<",
        "+",
        "-",
        "*",
        "/",
        "5",
        "30s",
        "1e400",
    ]
)


@given(st.lists(WORDS, max_size=30))
def test_words_in_any_order_parse_or_are_refused(words):
    """Words of the language in any order give a tree or a refusal."""
    try:
        tree = parse(" ".join(words))
    except ExpressionError:
        return
    assert metrics_of(tree)
