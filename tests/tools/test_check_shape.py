"""The shape check holds its limits."""

from __future__ import annotations

import pytest

import check_shape


@pytest.fixture
def check(tmp_path, capsys):
    """Return a function that writes one file of a repository and returns the findings."""

    def run(text, path="src/stepscope/store/a.py"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        check_shape.main([str(tmp_path)])
        return capsys.readouterr().err

    return run


GOOD = '"""A module."""\n\ndef f(x: int) -> int:\n    """Return x."""\n    return x\n'


def test_good_code_passes(check):
    """A small, documented, annotated module passes."""
    assert check(GOOD) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('"""M."""\n' + "x = 1\n" * 500, "501 lines, limit 500"),
        (f'"""M."""\nclass C:\n    """C."""\n{"    x = 1" + chr(10)}' + "    x = 1\n" * 300, "class C has 303 lines"),
        ('"""M."""\ndef f() -> None:\n    """F."""\n' + "    g()\n" * 60, "f has 62 lines"),
        ('"""M."""\ndef f(a: int) -> None:\n    """F."""\n' + "    if a: g()\n" * 15, "f has 16 branches"),
        ('"""M."""\ndef f() -> None: ...\n', "f is public and has no docstring"),
        ('"""M."""\nclass C:\n    """C."""\n    def m(self) -> None: ...\n', "m is public and has no docstring"),
        ("x = 1\n", "no module docstring"),
        ('"""M."""\ndef _f(a, *b) -> None: ...\n', "_f has no type for a, b"),
        ('"""M."""\ndef _f(): ...\n', "_f has no type for its result"),
        ('"""M."""\ntry: f()\nexcept OSError: pass\n', "a silent except; say in a comment"),
        ('"""M."""\ntry: f()\nexcept Exception: pass  # why\n', "a silent except of everything"),
        ('"""M."""\nwith suppress(Exception): f()\n', "suppresses everything"),
        ('"""M."""\ndef _f() -> None:\n    global x\n', "global x"),
    ],
)
def test_bad_shapes_are_refused(check, text, problem):
    """What is too long, branches too much, is undocumented, untyped, silent or global is refused."""
    assert problem in check(text)


@pytest.mark.parametrize(
    "statement",
    [
        "eval(x)",
        "exec(x)",
        "compile(x, '', 'exec')",
        "import pickle",
        "from pickle import loads",
        "import marshal, shelve",
        "import joblib",
        "yaml.load(x)",
        "yaml.load(x, Loader=yaml.Loader)",
        "torch.load(x)",
        "subprocess.run(x, shell=True)",
        "archive.extractall(x)",
        "os.system(x)",
        "numpy.load(x, allow_pickle=True)",
    ],
)
def test_foreign_code_is_never_run(check, statement):
    """No call runs or unpacks foreign data."""
    assert check(f'"""M."""\n{statement}\n') != ""


@pytest.mark.parametrize(
    "statement",
    [
        "re.compile(x)",
        "yaml.load(x, Loader=yaml.CSafeLoader)",
        "class Strict(yaml.SafeLoader):\n    '''S.'''\n\nyaml.load(x, Loader=Strict)",
        "subprocess.run(x, shell=False)",
    ],
)
def test_safe_relatives_pass(check, statement):
    """Calls that only look like the forbidden ones pass."""
    assert check(f'"""M."""\n{statement}\n') == ""


def test_explained_silence_passes(check):
    """A narrow handler that does nothing and says why passes."""
    assert check('"""M."""\ntry: f()\nexcept OSError:\n    pass  # already gone\n') == ""


def test_vague_names_are_refused(check):
    """A module may not have a name that could hold anything."""
    assert "could hold anything" in check(GOOD, "src/stepscope/store/utils.py")


def test_a_class_name_stands_for_one_thing(check):
    """Two modules of the package may not have classes of one name."""
    text = '"""A module."""\n\nclass Row:\n    """A row."""\n'
    assert check(text) == ""
    assert "stepscope.store.a has a class Row too" in check(text, "src/stepscope/web/b.py")


def test_hot_path_is_under_200_lines(check):
    """The file of the hot path has a limit of its own."""
    assert "limit 199" in check('"""M."""\n' + "x = 1\n" * 199, "src/stepscope/recorder/hotpath.py")


def test_top_names_are_few(check):
    """The top package exports at most ten names."""
    names = [f"n{index}" for index in range(11)]
    assert "11 names at the top" in check(f'"""M."""\n__all__ = {names}\n', "src/stepscope/__init__.py")


def test_tests_state_their_rule_and_do_not_sleep(check):
    """A test without a sentence is refused, and so is one that sleeps."""
    said = check("def test_a():\n    time.sleep(1)\n", "tests/store/test_a.py")
    assert "states no rule" in said
    assert "sleeps" in said


@pytest.mark.parametrize(
    ("call", "path", "is_refused"),
    [
        ("time.sleep(1)", "tests/integration/test_a.py", False),
        ("time.sleep(1)", "tests/integrations/test_a.py", True),
        ("asyncio.sleep(0.1)", "tests/web/test_a.py", True),
        ("asyncio.sleep(0)", "tests/web/test_a.py", False),
    ],
)
def test_only_tests_of_real_processes_may_sleep(check, call, path, is_refused):
    """A pause is refused outside of tests/integration, also in a coroutine; letting others run is no pause."""
    assert ("sleeps" in check(f'def test_a():\n    """A rule."""\n    {call}\n', path)) is is_refused
