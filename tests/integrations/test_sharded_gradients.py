from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")

from torch import distributed, nn  # noqa: E402 - only where torch is

from stepscope.integrations.numerics.gradients import Gradients  # noqa: E402
from tests.fakes import FakeRun  # noqa: E402


@pytest.fixture
def ranks():
    """This process is the first of two ranks whose collectives go nowhere."""
    distributed.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=2)
    yield
    distributed.destroy_process_group()


def sharded(run):
    """Return a model under FSDP2, its optimizer, and what measures it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    watch = Gradients(run, 1, ["0"], budget=None)
    watch.attach(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    model(torch.randn(3, 4)).sum().backward()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), watch


def measured(watch, optimizer):
    """Measure one step; return how many collectives that took."""
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as counted:
        watch.before_optimizer(optimizer)
        watch.after_optimizer(optimizer)
        watch.step_end()
    watch.close()
    return counted.get_total_counts()


def test_shards_cost_no_collective(ranks):
    """Under FSDP2 the norm is that of this rank's shards, is called local, and no rank is waited for."""
    run = FakeRun()
    model, optimizer, watch = sharded(run)
    shards = [each.grad.to_local() for each in model.parameters()]
    assert measured(watch, optimizer) == 0
    assert run.values("grad_norm") == []
    assert run.values("grad_norm_local") == pytest.approx([float(torch.nn.utils.get_total_norm(shards))])
    assert run.values("grad_norm_local/0")
    assert watch.failures.count == 0


def test_clipping_of_shards(ranks):
    """Under FSDP2 the program's clipping knows the norm of the whole gradient: it is taken, still for nothing."""
    run = FakeRun()
    model, optimizer, watch = sharded(run)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert measured(watch, optimizer) == 0
    assert run.values("grad_norm") == pytest.approx([float(norm.to_local())])
    assert run.values("grad_norm/0") == []
    assert run.values("grad_norm_local/0")
