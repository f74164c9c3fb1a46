from __future__ import annotations

import csv
import io
import json
import math
import sys

import pytest

from stepscope.cli.commands import sql
from stepscope.cli.main import main
from tests.exporters.recorded import leave_tail, make_run, points_of, seal_points


@pytest.fixture
def root(tmp_path):
    """A run with a NaN, and one whose name would act on a terminal."""
    seal_points(make_run(tmp_path), points_of({"loss": [0.1, math.nan, -math.inf]}))
    leave_tail(make_run(tmp_path, "run-2", config={"text": "\x1b[31m"}), [{"lr": 1 / 3}])
    return tmp_path


@pytest.fixture
def ask(root, capsys):
    """Run `stepscope sql` and return its exit code, its output and its errors."""

    def call(*arguments):
        code = main(["sql", "--dir", str(root), *arguments])
        return code, *capsys.readouterr()

    return call


def test_people_get_a_table(ask):
    """A table has titles, numbers to the right, what is absent as NULL, and the number of rows."""
    code, out, err = ask("SELECT name, seq, value, ns FROM points WHERE run = 'run-1' ORDER BY seq")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "name  seq  value    ns",
        "loss    0    0.1  NULL",
        "loss    1    nan  NULL",
        "loss    2   -inf  NULL",
        "(3 rows)",
    ]


def test_a_table_without_rows_has_titles(ask):
    """No rows are an answer: the titles and the number."""
    assert ask("SELECT name, value FROM points WHERE false")[1] == "name  value\n(0 rows)\n"


def test_an_empty_text_is_not_null(ask):
    """An empty text and no value look different, and both columns are shown."""
    assert ask("SELECT '' AS a, NULL AS b")[1].splitlines()[1:] == ["''  NULL", "(1 row)"]


def test_long_answers_are_cut_and_say_so(ask, monkeypatch):
    """A table ends after so many rows and says how many there are; CSV has all."""
    monkeypatch.setattr(sql, "SHOWN", 5)
    lines = ask("SELECT * FROM range(12)")[1].splitlines()
    assert (len(lines), lines[-1]) == (7, "(12 rows, the first 5 shown; --csv prints all)")
    assert len(ask("SELECT * FROM range(12)", "--csv")[1].splitlines()) == 13


def test_a_table_fits_the_terminal(ask, monkeypatch):
    """On a terminal no line is wider than it; in a pipe nothing is cut."""
    query = "SELECT repeat('x', 300) AS a, repeat('y', 300) AS b"
    assert "x" * 300 in ask(query)[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert max(map(len, ask(query)[1].splitlines())) <= 80


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
def test_nothing_acts_on_the_terminal(ask, form):
    """No control character of a query or a run reaches a table or JSON; CSV keeps the text as it is."""
    out = ask("SELECT chr(27) || '[31m' || chr(8238) AS a, config FROM runs", *form)[1]
    assert ("\x1b" in out) == (form == ["--csv"])
    assert form == ["--csv"] or "\u202e" not in out


@pytest.mark.promise("S2-047")
def test_json_is_strict(ask):
    """JSON is a list of objects; a value that JSON has not is null, and `nonfinite` says what it was."""

    def refuse(word):
        raise AssertionError(word)

    out = ask("SELECT seq, value, [value] AS list FROM points WHERE name = 'loss' ORDER BY seq", "--json")[1]
    assert json.loads(out, parse_constant=refuse) == [
        {"seq": 0, "value": 0.1, "list": [0.1]},
        {"seq": 1, "value": None, "list": [None], "nonfinite": {"value": "nan", "list.0": "nan"}},
        {"seq": 2, "value": None, "list": [None], "nonfinite": {"value": "-inf", "list.0": "-inf"}},
    ]
    assert json.loads(ask("SELECT 1 WHERE false", "--json")[1]) == []


def test_json_keeps_a_column_called_nonfinite(ask):
    """A column called `nonfinite` is not overwritten by the flags."""
    [row] = json.loads(ask("SELECT 'x' AS nonfinite, 'nan'::DOUBLE AS v", "--json")[1])
    assert row == {"nonfinite": "x", "v": None, "nonfinite_": {"v": "nan"}}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("TIMESTAMP '2024-01-02 03:04:05.000006'", "2024-01-02T03:04:05.000006Z"),
        ("TIMESTAMPTZ '2024-01-02 03:04:05+01'", "2024-01-02T02:04:05.000000Z"),
        ("DATE '2024-01-02'", "2024-01-02"),
        ("INTERVAL 90 SECOND", 90.0),
        ("1.5", 1.5),
        ("0.1234567890123456789", "0.1234567890123456789"),
        ("170141183460469231731687303715884105727::HUGEINT", 2**127 - 1),
        ("'\\xFF'::BLOB", "ff"),
        ("true", True),
        ("{'a': [1, NULL]}", {"a": [1, None]}),
        ("MAP {'k': 1}", {"k": 1}),
    ],
)
def test_every_type_has_a_form_in_json(ask, expression, value):
    """Values of every type of DuckDB have a form in JSON that loses nothing."""
    assert json.loads(ask(f"SELECT {expression} AS v", "--json")[1]) == [{"v": value}]


def test_csv_neutralises_formulas(ask):
    """In CSV a text that looks like a formula gets a quote, numbers stay numbers and NULL is empty."""
    out = ask("SELECT '=1+1' AS \"=a\", -1 AS b, -0.5::DOUBLE AS c, NULL AS d, true AS e, 'a,\"b' AS f", "--csv")[1]
    rows = list(csv.reader(io.StringIO(out, newline="")))
    assert rows == [["'=a", "b", "c", "d", "e", "f"], ["'=1+1", "-1", "-0.5", "", "true", 'a,"b']]


def test_plans_are_printed_as_they_are(ask):
    """The answer of EXPLAIN is the plan, line by line."""
    assert "COUNT" in ask("EXPLAIN SELECT count(*) FROM points")[1].upper()


@pytest.mark.parametrize(
    "query", ["COPY points TO '/tmp/x'", "SELECT * FROM read_text('/etc/passwd')", "SELECT nope", "SELECT 1; SELECT 2"]
)
def test_refusals_are_usage_errors(ask, query):
    """A query that is refused or wrong prints one message in our form, and exits with 2."""
    code, out, err = ask(query)
    assert (code, out) == (2, "")
    assert err.startswith("stepscope: cannot run the query: ")
    assert err.count("\n") == 1


def test_damage_is_told_once(root, ask):
    """What could not be read is said once, on standard error, beside the answer."""
    [unit] = (root / "mnist" / "run-1" / "metrics").glob("*-0-0-0.parquet")
    unit.write_bytes(unit.read_bytes()[:-1] + b"?")
    code, out, err = ask("SELECT count(*) AS n FROM points WHERE run = 'run-1'", "--json")
    assert (code, json.loads(out)) == (0, [{"n": 3}])
    assert err.count("footer or length is not as written") == 1


def test_forms_exclude_each_other(ask):
    """Only one form can be asked for."""
    with pytest.raises(SystemExit) as stop:
        ask("SELECT 1", "--json", "--csv")
    assert stop.value.code == 2
