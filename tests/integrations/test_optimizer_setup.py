"""How an optimizer updates its tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("given", "one_by_one"),
    [({}, True), ({"foreach": True}, False), ({"fused": True}, False), ({"foreach": False}, True)],
)
def test_tensors_on_processors_are_updated_one_by_one_unless_asked_otherwise(given: dict, *, one_by_one: bool) -> None:
    """Torch takes them together by itself only on a GPU."""
    from stepscope.integrations.torch.losses import optimizer_setup

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    facts = optimizer_setup(torch.optim.Adam(model.parameters(), **given))
    assert facts == {"optimizer": "Adam", "tensors": 4, "one_by_one": one_by_one}
