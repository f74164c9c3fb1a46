"""The gradient norm is read from the program's own clipping."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stepscope.recorder.clipping import ClipWatch


class Listener:
    def __init__(self):
        self.heard = []

    def clipped(self, norm, parameters=None, *, limit=None, euclidean=True):
        self.heard.append((norm, parameters, limit, euclidean))


class FakeTorch:
    """The functions of torch that clip, as they are since 2.6 or before."""

    Tensor = float

    def __init__(self, *, is_new):
        self.is_compiling = False
        self.compiler = SimpleNamespace(is_dynamo_compiling=lambda: self.is_compiling)
        self.inner, outer = SimpleNamespace(), SimpleNamespace()
        self.nn = SimpleNamespace(utils=outer)
        outer.clip_grad = self.inner
        if is_new:
            self.inner._get_total_norm = outer.get_total_norm = self._total
            self.inner._clip_grads_with_norm_ = outer.clip_grads_with_norm_ = self._scale
        else:
            self.inner.clip_grad_norm_ = outer.clip_grad_norm_ = self._clip

    @staticmethod
    def _total(tensors, norm_type=2.0):
        return sum(abs(value) ** norm_type for value in tensors) ** (1 / norm_type)

    @staticmethod
    def _scale(parameters, max_norm, total_norm):
        return [value * max_norm / total_norm for value in parameters]

    def _clip(self, parameters, max_norm, norm_type=2.0):
        self.seen = list(parameters)
        return self._total(self.seen, norm_type)

    def clip(self, parameters, max_norm, norm_type=2.0):
        """Clip as `clip_grad_norm_` does, which looks its halves up in its module."""
        parameters = list(parameters)
        norm = self.inner._get_total_norm(parameters, norm_type)
        return self.inner._clip_grads_with_norm_(iter(parameters), max_norm, norm)


@pytest.fixture
def listener():
    return Listener()


def test_the_norm_is_reported_before_the_gradients_are_scaled(listener):
    """The norm comes with the parameters and the limit, and says whether it is the 2-norm."""
    torch = FakeTorch(is_new=True)
    watch = ClipWatch(listener, torch)
    assert torch.clip([3.0, 4.0], 1.0) == [0.6, 0.8]
    torch.clip([3.0, 4.0], 1.0, norm_type=1.0)
    watch.close()
    torch.clip([3.0, 4.0], 1.0)
    assert listener.heard == [(5.0, [3.0, 4.0], 1.0, True), (7.0, [3.0, 4.0], 1.0, False)]


def test_older_versions_of_torch_report_the_norm_afterwards(listener):
    """Before 2.6 one function does both halves; an iterator of parameters is still read once."""
    torch = FakeTorch(is_new=False)
    ClipWatch(listener, torch)
    assert torch.nn.utils.clip_grad_norm_(iter([3.0, 4.0]), 1.0) == 5.0
    torch.inner.clip_grad_norm_([3.0], 1.0, norm_type=3.0)
    assert listener.heard == [(5.0, [3.0, 4.0], 1.0, True)]
    assert torch.seen == [3.0]


@pytest.mark.parametrize("is_new", [True, False])
def test_a_compiler_sees_the_originals(listener, is_new):
    """While torch.compile traces the program, nothing is reported."""
    torch = FakeTorch(is_new=is_new)
    ClipWatch(listener, torch)
    torch.is_compiling = True
    if is_new:
        torch.clip([3.0, 4.0], 1.0)
    else:
        torch.inner.clip_grad_norm_([3.0, 4.0], 1.0)
    assert listener.heard == []


def test_a_wrapper_that_was_added_since_stays(listener):
    """`close` does not remove the wrapper of another tool; ours below it stays, and reports nothing."""
    torch = FakeTorch(is_new=True)
    watch = ClipWatch(listener, torch)
    ours = torch.inner._clip_grads_with_norm_

    def theirs(*words):
        return ours(*words)

    torch.inner._clip_grads_with_norm_ = theirs
    watch.close()
    assert torch.inner._clip_grads_with_norm_ is theirs
    torch.clip([3.0, 4.0], 1.0)
    assert listener.heard == []
    ClipWatch(listener, torch)
    torch.clip([3.0, 4.0], 1.0)
    assert [norm for norm, *_ in listener.heard] == [5.0]


def test_any_number_of_watches_costs_one_wrapper():
    """Watches that overlap and close in any order, a thousand of them, leave torch's own functions behind."""
    torch = FakeTorch(is_new=True)
    original, watch = torch.inner._clip_grads_with_norm_, None
    for _ in range(1000):
        newer = ClipWatch(Listener(), torch)
        if watch is not None:
            watch.close()
        watch = newer
    last = ClipWatch(listener := Listener(), torch)
    watch.close()
    assert torch.clip([3.0, 4.0], 1.0) == [0.6, 0.8]
    assert torch.inner._clip_grads_with_norm_.__wrapped__ is original
    last.close()
    assert torch.inner._clip_grads_with_norm_ is original
    assert [norm for norm, *_ in listener.heard] == [5.0]
