"""torch.compile with and without us: the same graphs, graph breaks and recompilations, and the same numbers."""

from __future__ import annotations

import json

import pytest

from tests.integration.processes import until
from tests.integration.test_launchers import QUIET

pytest.importorskip("torch", reason="needs torch, which is instrumented")

COMPILED = """
    import json, sys
    import torch
    import torch._dynamo
    from torch._dynamo.utils import counters, get_compilation_metrics, guard_failures

    run = None
    if sys.argv[1] != "plain":
        import stepscope
        run = stepscope.init(project="compiled")
        run.overhead_budget = float(sys.argv[1])
        run.watch()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        def forward(self, x):
            return self.last(torch.relu(self.first(x)))

    torch.manual_seed(0)
    loss_of = torch.nn.CrossEntropyLoss()
    data = torch.utils.data.TensorDataset(torch.randn(38, 8), torch.randint(0, 4, (38,)))

    def train(how):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        predict, update = model, optimizer.step
        if how == "module":
            predict = torch.compile(model, backend="eager")
        elif how == "in place":
            model.compile(backend="eager")
        elif how == "function":
            predict = torch.compile(lambda x: model(x), backend="eager")
        elif how == "breaks":
            def broken(x):
                x = model.first(x)
                print(end="")
                return model.last(x)
            predict = torch.compile(broken, backend="eager")
        elif how == "optimizer":
            update = torch.compile(optimizer.step, backend="eager")

        def step(x, y):
            optimizer.zero_grad()
            loss = loss_of(predict(x), y)
            loss.backward()
            update()
            return loss
        if how == "step":
            step = torch.compile(step, backend="eager")
        for epoch in range(2):
            for x, y in torch.utils.data.DataLoader(data, batch_size=8):  # the last one is short: it recompiles
                loss = step(x, y)
            model.eval()
            with torch.no_grad():
                for x, y in torch.utils.data.DataLoader(data, batch_size=8):
                    predict(x)
            model.train()
            torch.save(model.state_dict(), "model.pt")
        return loss.item()

    found = {}
    for how in ("module", "in place", "function", "breaks", "optimizer", "step"):
        torch._dynamo.reset()
        counters.clear()
        guard_failures.clear()
        before = len(get_compilation_metrics())
        loss = train(how)
        compiled = [(metric.co_name, str(metric.compile_id).partition("/")[2])
                    for metric in get_compilation_metrics()[before:]]
        found[how] = {
            "loss": loss, "breaks": sum(counters["graph_break"].values()), "stats": dict(counters["stats"]),
            "guards": sum(map(len, guard_failures.values())), "compiled": compiled,
        }
    if run is not None:
        run.finish()
        found["path"] = str(run.path)
    print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["0.01", "1e-6"])
def test_what_is_compiled_is_the_same_with_and_without_us(bench, budget):
    """Graphs, breaks and losses are equal and every compilation recorded, also where few steps are measured."""
    import stepscope

    environ = {**QUIET, "TORCH_LOGS": "-all"}
    plain, watched = (bench.start(COMPILED, how, environ=environ, name=f"{how}.py") for how in ("plain", budget))
    plain, watched = (json.loads(trainer.out.splitlines()[-1]) for trainer in (plain, watched) if not trainer.wait())
    past = stepscope.open(watched.pop("path"))
    until(lambda: past.state == "finished", "the end")
    assert watched == plain
    assert plain["step"]["breaks"] > plain["module"]["breaks"] == 0
    events = [event for event in past.events() if event["kind"] == "compile"]
    assert len(events) == sum(len(made["compiled"]) for made in plain.values())
    assert any(event["recompiled"] for event in events)
    assert len(past.series("step_seconds").value) == 6 * 10
    assert past.series("phase/compile").value.sum() > 0


ORDERS = """
    import hashlib, json, sys
    import torch
    from torch._dynamo.utils import counters

    run = None
    if sys.argv[1] == "watched":
        import stepscope
        run = stepscope.init(project="orders")
    torch.use_deterministic_algorithms(True)

    def train(how):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(64, 10)
        )
        optimizer, loss_of = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.nn.CrossEntropyLoss()
        predict = model
        def watch():
            if run is not None:
                run.watch(model, optimizer)
        if "first" in how:
            watch()
        if "in place" in how:
            model.compile()
        elif "module" in how:
            predict = torch.compile(model)
        if "first" not in how:
            watch()
        for _ in range(12):
            optimizer.zero_grad()
            loss_of(predict(torch.randn(32, 20)), torch.randint(0, 10, (32,))).backward()
            optimizer.step()
        weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
        return weights.hexdigest(), dict(counters["stats"]), dict(counters["graph_break"])

    HOWS = ("module, then watched", "watched first, then module", "in place, then watched",
            "watched first, then in place", "plain")
    found = {how: train(how) for how in HOWS}
    if run is not None:
        run.finish()
    print(json.dumps([found, str(run.path) if run else None]))
"""


@pytest.mark.slow
def test_weights_are_bitwise_those_without_us_in_whatever_order_a_model_is_compiled_and_watched(bench):
    """A model of torch's own layers trains to the same bits, watched before or after it is compiled, or not at all."""
    import stepscope

    environ = {**QUIET, "TORCH_LOGS": "-all"}
    trainers = [bench.start(ORDERS, how, environ=environ, name=f"{how}.py") for how in ("plain", "watched")]
    (plain, _), (watched, path) = (json.loads(one.out.splitlines()[-1]) for one in trainers if not one.wait())
    assert watched == plain
    assert plain["module, then watched"] != plain["plain"]  # compiled code has other bits, or this would show nothing
    past = stepscope.open(path)
    until(lambda: past.state == "finished", "the end")
    assert len(past.series("phase/forward").value) > 0
