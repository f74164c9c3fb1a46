from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is

from stepscope.integrations.numerics.activations import (  # noqa: E402
    Activations,
    activation_row,
    attention_row,
    weights_in,
    weights_of,
)
from tests.fakes import FakeRun  # noqa: E402
from tests.integrations.stand_ins import Gpu  # noqa: E402


class Block(nn.Module):
    """A layer with attention by scaled_dot_product_attention, a bounded function and a ReLU."""

    class SelfAttention(nn.Module):
        """Attention that does not return its weights."""

        def __init__(self):
            super().__init__()
            self.project = nn.Linear(8, 24)

        def forward(self, x):
            query, key, value = (
                part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.project(x).chunk(3, dim=-1)
            )
            self.seen = query, key
            out = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            return out.transpose(1, 2).flatten(2)

    def __init__(self):
        super().__init__()
        self.attention, self.gate, self.relu = self.SelfAttention(), nn.Tanh(), nn.ReLU()

    def forward(self, x):
        return self.relu(self.gate(self.attention(x) * 100))


def measure(model, parts, steps=2, every=1, inputs=None):
    """Run some steps and return the run."""
    run = FakeRun()
    watch = Activations(run, every, parts, budget=None)
    watch.attach(model)
    watch.step_end()
    watch.step_begin()
    for step in range(steps):
        run.step_index = step
        model(torch.randn(2, 5, 8) if inputs is None else inputs)
        watch.step_end()
        watch.step_begin()
    watch.close()
    assert watch.failures.count == 0, run.events
    return run


def hooks(model):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


@pytest.mark.promise("S2-061")
def test_activation_statistics():
    """Mean, deviation, share of zeros and of saturated values are those of the module's output."""
    model = Block()
    kept = []
    model.relu.register_forward_hook(lambda _module, _inputs, out: kept.append(out.detach()))
    run = measure(model, ["gate", "relu"], steps=1)
    [(_, row)] = run.rows
    assert float(row["activation_mean/relu"]) == pytest.approx(float(kept[0].mean()))
    assert float(row["activation_std/relu"]) == pytest.approx(float(kept[0].std(correction=0)))
    assert float(row["activation_zero_ratio/relu"]) == pytest.approx(float((kept[0] == 0).float().mean()))
    assert float(row["activation_saturated_ratio/gate"]) > 0.3
    assert "activation_saturated_ratio/relu" not in row


@pytest.mark.promise("S2-061")
def test_attention_statistics():
    """Entropy and maximum of attention are those of the weights that the module uses, also where it returns none."""
    torch.manual_seed(0)
    model = Block()
    run = measure(model, ["attention"], steps=1)
    query, key = (part.detach() for part in model.attention.seen)
    scores = query @ key.transpose(-2, -1) / 2.0
    weights = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf).softmax(-1)
    [(_, row)] = run.rows
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1).mean()
    assert float(row["attention_entropy/attention"]) == pytest.approx(float(entropy), rel=1e-4)
    assert float(row["attention_max/attention"]) == pytest.approx(float(weights.amax(-1).mean()), rel=1e-4)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention(need_weights):
    """torch's own attention module is seen whether or not it is asked for its weights."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.layer(x, x, x, need_weights=need_weights, average_attn_weights=False)[0]

    run = measure(Model(), ["layer"], steps=1)
    assert 0 < run.values("attention_entropy/layer")[0] <= math.log(5) + 1e-6
    assert 0.2 <= run.values("attention_max/layer")[0] <= 1


def test_hidden_attention_is_told():
    """Attention that can be seen in no way is absent, and the event says how to see it."""

    class Attention(nn.Linear):
        pass

    model = nn.Sequential(Attention(8, 8))
    run = measure(model, ["0"])
    assert not run.values("attention_entropy/0")
    assert run.kinds() == ["activations_unavailable"]
    assert "need_weights" in run.events[0]["remedy"]


def test_hooks_only_in_measured_steps():
    """Hooks are on the modules in the measured steps only, and gone at the end."""
    model = Block()
    run = FakeRun()
    watch = Activations(run, 5, ["relu"], budget=None)
    watch.attach(model)
    seen = []
    for _ in range(15):
        watch.step_end()
        watch.step_begin()
        seen.append(hooks(model))
        model(torch.randn(1, 5, 8))
    watch.step_end()
    watch.step_begin()
    watch.close()
    assert sum(1 for count in seen if count) == 3
    assert len(run.values("activation_mean/relu")) == 3
    assert hooks(model) == 0


def test_first_call_of_a_step_counts():
    """A module that is called twice in a step, as in accumulation, is measured once."""
    model = nn.Sequential(nn.ReLU())
    run = FakeRun()
    watch = Activations(run, 1, [""], budget=None)
    watch.attach(model)
    watch.step_end()
    watch.step_begin()
    model(torch.ones(3))
    model(torch.full((3,), 7.0))
    watch.step_end()
    watch.step_begin()
    watch.close()
    assert run.values("activation_mean/0") == [1.0]


def test_error_in_the_module():
    """An exception in the module goes on, and no hook or mode stays behind."""

    class Attention(nn.Module):
        def forward(self, x):
            raise KeyError("mine")

    model = nn.Sequential(Attention())
    run = FakeRun()
    watch = Activations(run, 1, ["0"], budget=None)
    watch.attach(model)
    watch.step_end()
    watch.step_begin()
    with pytest.raises(KeyError, match="mine"):
        model(torch.ones(3))
    watch.close()
    assert hooks(model) == 0
    assert torch.overrides._get_current_function_mode() is None


def test_compiled_models_are_left_alone():
    """A compiled model gets no hooks, which would make it compile anew; that is said once."""
    model = nn.Sequential(nn.Linear(2, 2))
    model.compile(backend="eager")
    run = FakeRun()
    watch = Activations(run, 1, ["0"], budget=None)
    watch.attach(model)
    for _ in range(3):
        watch.step_end()
        watch.step_begin()
        assert hooks(model) == 0
    assert run.kinds() == ["activations_unavailable"]


def test_no_wait_for_the_device():
    """Statistics stay on the device."""
    Gpu.waits.clear()
    row = activation_row("a", "Tanh", Gpu(torch.randn(4, 5)))
    row |= attention_row("a", Gpu(torch.rand(2, 3, 4).softmax(-1)))
    assert all(isinstance(value, Gpu) for value in row.values())
    assert Gpu.waits == []


@given(st.integers(1, 40))
def test_even_attention(keys):
    """Even attention over n keys has the entropy log n and the maximum 1/n."""
    row = attention_row("a", torch.full((1, 1, keys), 1 / keys))
    assert float(row["attention_entropy/a"]) == pytest.approx(math.log(keys), abs=1e-5)
    assert float(row["attention_max/a"]) == pytest.approx(1 / keys)


@pytest.mark.parametrize("mask", ["none", "bool", "float"])
@pytest.mark.parametrize("gqa", [False, True])
def test_weights_are_those_of_sdpa(mask, gqa):
    """The weights give the output of scaled_dot_product_attention, under any mask, also with grouped queries."""
    torch.manual_seed(1)
    query, key, value = torch.randn(2, 4, 6, 8), *torch.randn(2, 2, 2 if gqa else 4, 5, 8)
    given_mask = {"none": None, "bool": torch.rand(2, 1, 6, 5) > 0.3, "float": torch.randn(6, 5)}[mask]
    expected = nn.functional.scaled_dot_product_attention(query, key, value, given_mask, enable_gqa=gqa)
    weights = weights_of(query, key, attn_mask=given_mask, enable_gqa=gqa)
    values = value.repeat_interleave(2, 1) if gqa else value
    assert torch.allclose(weights @ values, expected, atol=1e-5, equal_nan=True)


def test_what_is_no_attention():
    """A second output that is no attention is not taken for one."""
    hidden = torch.randn(2, 5, 8)
    assert weights_in("LSTM", (hidden, hidden)) is None
    assert weights_in("Attention", (hidden, None)) is None
    assert weights_in("Attention", (hidden, hidden)) is None
    assert weights_in("Attention", hidden) is None
    assert weights_in("Softmax", hidden) is hidden
