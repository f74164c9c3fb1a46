from stepscope.integrations.walls import guarded
from stepscope.recorder.complaints import Complaints


class Hooks:
    def __init__(self, *errors):
        self.errors = list(errors)
        self.notices = Complaints()

    @guarded
    def on_step_end(self):
        raise self.errors.pop(0)


class Bare:
    @guarded
    def on_step_end(self, value):
        return value


def test_each_type_of_exception_is_reported_once(capsys):
    """A hook that fails in two ways reports both, each once, and raises neither."""
    hooks = Hooks(ValueError("one"), KeyError("two"), ValueError("three"))
    for _ in range(3):
        assert hooks.on_step_end() is None
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].partition(";")[0] for line in told] == [
        "cannot go on in Hooks.on_step_end: ValueError: one",
        "cannot go on in Hooks.on_step_end: KeyError: 'two'",
    ]
    assert hooks.notices.counts == {"Hooks.on_step_end ValueError": 2, "Hooks.on_step_end KeyError": 1}


def test_a_hook_that_succeeds_builds_nothing():
    """Without an exception the guard only calls the method: the object's notices are not even looked up."""
    assert Bare().on_step_end(3) == 3
