from __future__ import annotations

import pytest

from stepscope.core.vocabulary import BY_NAME
from stepscope.samplers.nvidia import NvidiaSampler, describe_gpus, driver_present, node_values, xid_event
from stepscope.samplers.nvidia_metrics import METRICS, XIDS
from tests.nvml.lines import VALUES, FakeLine, answer, card, device, lost

SECOND = 10**9
ON = {"STEPSCOPE_NVML": "1"}


def sampler(line, visible=None, all_devices=False, pids=(), **more):
    """Return a sampler over a helper that answers what the test says."""
    return NvidiaSampler(visible, all_devices, lambda: set(pids), start=lambda: line, environ=ON, **more)


def kinds(source):
    """Return the kinds of the events since the last call."""
    return [event["kind"] for event in source.events()]


@pytest.mark.promise("S2-059")
def test_values_and_sums_of_the_node():
    """Each GPU has its values; together they have mean and least utilisation, sum and most memory, power and heat."""
    line = FakeLine(answer(card(0), card(1, {**VALUES, "utilization_ratio": 0.1, "memory_used_bytes": 6.0})))
    values = sampler(line).sample(0)
    assert values["gpu/0/utilization_ratio"] == 0.5
    assert values["gpu/mean_utilization_ratio"] == 0.3
    assert values["gpu/min_utilization_ratio"] == 0.1
    assert (values["gpu/sum_memory_used_bytes"], values["gpu/max_memory_used_bytes"]) == (8.0, 6.0)
    assert (values["gpu/sum_power_watts"], values["gpu/max_temperature_celsius"]) == (6.0, 40.0)
    assert values["gpu/count"] == 2.0


def test_only_what_is_mine():
    """GPUs that CUDA_VISIBLE_DEVICES hides are left out, or on request shown and not summed up."""
    reply = answer(card(0), card(1), card(2), xids=[[0, 31]])
    mine = sampler(FakeLine(reply), visible="1,2")
    values = mine.sample(0)
    assert "gpu/0/power_watts" not in values
    assert values["gpu/sum_power_watts"] == 6.0
    assert mine.events() == []
    everything = sampler(FakeLine(reply), visible="1,2", all_devices=True)
    values = everything.sample(0)
    assert "gpu/0/power_watts" in values
    assert values["gpu/sum_power_watts"] == 6.0


def test_ranks_that_see_one_gpu_each():
    """What other ranks of the run on the node see is the run's as well."""
    source = sampler(FakeLine(answer(card(0), card(1), card(2))), visible="0")
    source.also_visible("2")
    assert source.sample(0)["gpu/count"] == 2.0
    assert source.mine == ((0, None), (2, None))


def test_mig_instance_of_mine():
    """Of a shared GPU only the instance that is mine counts for memory; heat and power are those of the card."""
    facts = [{"index": at, "uuid": f"MIG-{at}", "name": "", "ids": [at, 0]} for at in (0, 1)]
    instances = [{"index": at, "values": {"memory_used_bytes": 1.0 + at}, "processes": [[4, 1]]} for at in (0, 1)]
    reply = answer(card(0, mig=instances), devices=[device(0, mig=facts)])
    values = sampler(FakeLine(reply), visible="MIG-1", pids={4}).sample(0)
    assert "gpu/0/mig/0/memory_used_bytes" not in values
    assert values["gpu/0/mig/1/memory_used_bytes"] == values["gpu/sum_memory_used_bytes"] == 2.0
    assert values["gpu/0/mig/1/own_memory_bytes"] == 1.0
    assert values["gpu/sum_power_watts"] == 3.0


def test_memory_of_mine_and_of_others():
    """Memory of the run's processes is told apart from that of others."""
    line = FakeLine(answer(card(0, processes=[[7, 100], [8, 20], [9, 3]])))
    values = sampler(line, pids={7, 8}).sample(0)
    assert (values["gpu/0/own_memory_bytes"], values["gpu/0/other_memory_bytes"]) == (120.0, 3.0)


@pytest.mark.parametrize(("processes", "words"), [([[7, 100]], "--pid=host"), ([[7, None]], "does not report")])
def test_memory_that_cannot_be_told_apart(tmp_path, processes, words):
    """Process numbers of another namespace, or hidden memory, give no share at all, and the reason."""
    source = sampler(FakeLine(answer(card(0, processes=processes))), pids={1}, root=tmp_path)
    assert "gpu/0/own_memory_bytes" not in source.sample(0)
    assert words in source.absent()["gpu/0/own_memory_bytes"]


def test_lost_gpu_and_its_return():
    """A lost GPU is one event and a reason, its values stop, the others go on; its return is another event."""
    line = FakeLine(
        answer(card(0), card(1)), answer(lost(0), card(1)), answer(lost(0), card(1)), answer(card(0), card(1))
    )
    source = sampler(line)
    source.sample(0)
    values = source.sample(SECOND)
    assert "gpu/0/power_watts" not in values
    assert values["gpu/1/power_watts"] == values["gpu/sum_power_watts"] == 3.0
    (event,) = source.events()
    assert (event["kind"], event["gpu"], event["uuid"]) == ("gpu_lost", 0, "GPU-0f")
    assert "GPU is lost" in source.absent()["gpu/0"]
    source.sample(2 * SECOND)
    assert source.events() == []
    source.sample(3 * SECOND)
    assert kinds(source) == ["gpu_back"]
    assert source.absent() == {}


def test_late_answer_does_not_bring_back_a_lost_gpu():
    """Of two answers in one call the newer one decides, and what only the older one has is kept."""
    line = FakeLine(None)
    source = sampler(line)
    source.sample(0)
    line.answers = [answer(card(0), card(1, {**VALUES, "power_limit_watts": 9.0})), answer(lost(0), card(1))]
    values = source.sample(SECOND)
    assert "gpu/0/power_watts" not in values
    assert values["gpu/1/power_limit_watts"] == 9.0
    assert source.moment == 7


def test_throttling_is_told_when_it_starts():
    """Harmful throttling is an event when it starts, not each second, and again only after a quiet minute."""
    hot, cool = ({"throttle_hw_thermal": flag, "throttle_power_cap": 1.0} for flag in (1.0, 0.0))
    states = {0: cool, 1: hot, 2: hot, 3: cool, 4: hot, 70: hot}
    line = FakeLine(*[answer(card(0, state)) for state in states.values()])
    source = sampler(line)
    told = {second: (source.sample(second * SECOND), kinds(source))[1] for second in states}
    assert told == {0: [], 1: ["gpu_throttled"], 2: [], 3: [], 4: [], 70: ["gpu_throttled"]}


def test_new_uncorrected_errors_are_told():
    """Errors from before the run are a value only; new ones are an event with their number."""
    totals = [5.0, 5.0, 8.0]
    line = FakeLine(*[answer(card(0, {"ecc_uncorrected_errors_total": total})) for total in totals])
    source = sampler(line)
    told = [(source.sample(at * SECOND), source.events())[1] for at in range(3)]
    assert told[:2] == [[], []]
    assert (told[2][0]["kind"], told[2][0]["errors"]) == ("ecc_uncorrected", 3)


@pytest.mark.parametrize("number", [13, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 119])
def test_common_xids_have_meaning_and_remedy(number):
    """The common Xids are explained; any other one is at least told."""
    event = xid_event(1, number, "GPU-1")
    assert event["meaning"] == XIDS[number].meaning
    assert event["remedy"]
    assert "list of Xid errors" in str(xid_event(1, 7777, "GPU-1")["remedy"])


def test_xid_of_mine_is_an_event():
    """An Xid of one of the run's GPUs is an event."""
    source = sampler(FakeLine(answer(card(0), xids=[[0, 79]])))
    source.sample(0)
    (event,) = source.events()
    assert (event["kind"], event["xid"], event["meaning"]) == ("xid", 79, "the GPU has fallen off the bus")


@pytest.mark.promise("S2-058")
def test_missing_fields_are_said_with_reason_and_remedy():
    """A missing value has its reason and remedy, once for all GPUs that share it; rights never mean root."""
    denied = {"power_watts": ["denied", "Insufficient Permissions"]}
    both = {"fan_ratio": ["unsupported", "Not Supported"]}
    source = sampler(FakeLine(answer(card(0, missing={**both, **denied}), card(1, missing=both))))
    source.sample(0)
    absent = source.absent()
    assert absent["gpu/*/fan_ratio"].startswith("this card or driver does not report it (Not Supported);")
    assert "root is not needed" in absent["gpu/0/power_watts"]
    assert len(absent) == 2


@pytest.mark.promise("S2-021", "S1-015", "S1-078")
def test_machine_without_gpu_starts_nothing(tmp_path):
    """Without a sign of a driver no process is started, and the reason lists what to check."""
    source = NvidiaSampler(None, False, set, start=pytest.fail, root=tmp_path, environ={})
    assert source.sample(0) == {}
    assert source.events() == []
    reason = source.absent()["gpu"]
    assert all(word in reason for word in ("nvidia-smi", "torch.cuda.is_available()", "driver"))
    assert describe_gpus(start=pytest.fail, root=tmp_path, environ={}).reason == reason


def test_signs_of_a_driver(tmp_path):
    """The device file of the driver is sign enough."""
    assert not driver_present(tmp_path, {})
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert driver_present(tmp_path, {})


@pytest.mark.parametrize("visible", ["", " "])
def test_run_without_gpus_starts_nothing(visible):
    """An empty CUDA_VISIBLE_DEVICES means that the run has no GPU: nothing is started."""
    source = NvidiaSampler(visible, False, set, start=pytest.fail, environ=ON)
    assert source.sample(0) == {}
    assert "CUDA_VISIBLE_DEVICES" in source.absent()["gpu"]


def test_hidden_or_no_gpus_are_explained():
    """A variable that names nothing, a driver without cards and an order that is a guess are said."""
    nothing = sampler(FakeLine(answer(card(0))), visible="-1")
    assert nothing.sample(0) == {}
    assert "CUDA_VISIBLE_DEVICES" in nothing.absent()["gpu"]
    empty = sampler(FakeLine(answer()))
    empty.sample(0)
    assert "nvidia-smi -L" in empty.absent()["gpu"]
    mixed = sampler(FakeLine(answer(card(0), card(1), devices=[device(0, "T4"), device(1)])), visible="1")
    mixed.sample(0)
    assert "CUDA_DEVICE_ORDER" in mixed.absent()["gpu/mine"]


def test_sums_need_values():
    """What no GPU tells has no sum."""
    assert node_values({}, [(0, None)]) == {}


def test_every_name_is_declared():
    """A metric that core knows too is declared the same in both places."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert [metric for metric in METRICS if BY_NAME.get(metric.name, metric) != metric] == []
