"""What the helper reads from the fake driver through the real binding."""

from __future__ import annotations

import os

import pytest

from stepscope.samplers.nvidia_dialog import Link
from stepscope.samplers.nvidia_read import throttle_flags
from tests.nvml.fixture import fake_driver  # noqa: F401 - the fixture `driver`

pytest.importorskip("pynvml")
EVERYTHING = {"slow": True, "devices": True}
GIB = 2.0**30


@pytest.fixture
def ask(driver):
    """Give a function that asks one helper process and returns its answer."""
    link = Link()

    def once(request=EVERYTHING):
        link.send(request)
        (answer,) = link.receive(30.0)
        return answer

    yield once
    link.abandon(5.0)


def values_of(answer, index):
    """Return the values of one GPU."""
    return next(card["values"] for card in answer["gpus"] if card["index"] == index)


@pytest.mark.promise("S2-001", "S1-009", "S3-031")
def test_all_fields_in_base_units(driver, ask):
    """Every value that a card tells is read, in ratios, bytes, degrees, watts, joules and hertz."""
    driver.set({"2.util": 37, "2.power": 412_500, "2.energy": 9000, "2.fan": 45, "2.throttle": "0x44"})
    driver.set({"2.ecc_uncorrected": 3, "2.rows_pending": 1, "2.pcie_replays": 6, "2.nvlink_crc_flit": 4})
    answer = ask()
    values = values_of(answer, 2)
    assert len(answer["gpus"]) == len(answer["devices"]) == 8
    assert values["utilization_ratio"] == 0.37
    assert values["memory_used_bytes"] == 3 * GIB
    assert values["memory_total_bytes"] == 80 * GIB
    assert (values["temperature_celsius"], values["memory_temperature_celsius"]) == (42.0, 50.0)
    assert (values["power_watts"], values["power_limit_watts"]) == (412.5, 700.0)
    assert values["energy_joules_total"] == 9.0
    assert values["fan_ratio"] == 0.45
    assert (values["sm_clock_hertz"], values["memory_clock_hertz"]) == (1.98e9, 2.619e9)
    assert (values["throttle_power_cap"], values["throttle_hw_thermal"], values["throttle_hw_slowdown"]) == (1, 1, 0)
    assert (values["ecc_corrected_errors_total"], values["ecc_uncorrected_errors_total"]) == (0, 3)
    assert (values["remapped_rows_pending"], values["pcie_replays_total"]) == (1, 6)
    assert values["nvlink_crc_errors_total"] == 4


def test_slow_values_only_when_asked_for(ask):
    """The everyday answer leaves out what hardly changes, and the names of the cards."""
    ask()
    answer = ask({})
    assert "devices" not in answer
    assert "power_limit_watts" not in values_of(answer, 0)
    assert "power_watts" in values_of(answer, 0)


def test_values_change_while_it_runs(driver, ask):
    """A change in the driver is in the next answer."""
    assert values_of(ask(), 0)["utilization_ratio"] == 0.1
    driver.set({"0.util": 99})
    assert values_of(ask({}), 0)["utilization_ratio"] == 0.99


def test_pcie_traffic_comes_one_gpu_at_a_time(driver, ask):
    """Traffic takes the driver 40 ms to measure: it is read between answers, for another GPU each time."""
    driver.set({"0.pcie_sent": 2, "1.pcie_sent": 4, "count": 2})
    name = "pcie_sent_bytes_per_second"
    told = [[card["values"].get(name) for card in ask({"pcie": True})["gpus"]] for _ in range(3)]
    assert told == [[None, None], [2048.0, None], [None, 4096.0]]


@pytest.mark.promise("S2-058")
def test_missing_fields_are_noted_and_the_rest_is_read(driver, ask):
    """A field that a card does not have, or that needs rights, is missing with its reason; nothing else is."""
    driver.set({"0.unsupported": "fan,energy,ecc", "0.denied": "power,processes", "0.unknown": "util"})
    answer = ask()
    missing = answer["gpus"][0]["missing"]
    assert missing["fan_ratio"] == ["unsupported", "Not Supported"]
    assert missing["energy_joules_total"][0] == missing["ecc_corrected_errors_total"][0] == "unsupported"
    assert missing["power_watts"] == ["denied", "Insufficient Permissions"]
    assert missing["own_memory_bytes"][0] == "denied"
    assert missing["utilization_ratio"][0] == "failed"
    assert answer["gpus"][0]["processes"] is None
    assert values_of(answer, 0)["temperature_celsius"] == 40.0
    assert "missing" not in answer["gpus"][1]


def test_field_that_fails_once_is_asked_again(driver, ask):
    """A passing failure leaves out one value once."""
    driver.set({"0.unknown": "util"})
    assert "utilization_ratio" not in values_of(ask(), 0)
    driver.set({"0.unknown": None})
    answer = ask({})
    assert values_of(answer, 0)["utilization_ratio"] == 0.1
    assert "missing" not in answer["gpus"][0]


def test_older_drivers_have_another_way(driver, ask):
    """Where the newer call is missing the older one is made."""
    driver.set({"0.unsupported": "memory_v2,temperature_v"})
    values = values_of(ask(), 0)
    assert values["temperature_celsius"] == 40.0
    assert values["memory_used_bytes"] == 1.5 * GIB  # the older call counts the driver's share


@pytest.mark.parametrize(("line", "reason"), [("lost", "GPU is lost"), ("reset", "GPU requires a reset")])
def test_lost_gpu_does_not_stop_the_others(driver, ask, line, reason):
    """A lost GPU is told as such, the others as before; one that answers again is read again."""
    ask()
    driver.set({f"1.{line}": 1})
    answer = ask({})
    assert answer["gpus"][1] == {"index": 1, "lost": reason}
    assert values_of(answer, 7)["utilization_ratio"] == 0.8
    driver.set({f"1.{line}": 0})
    assert values_of(ask({}), 1)["utilization_ratio"] == 0.2


def test_gpu_that_was_lost_before_the_start(driver, ask):
    """A GPU that cannot even be opened is told as lost, and taken up when it can."""
    driver.set({"0.lost": 1})
    answer = ask()
    assert {"index": 0, "lost": "GPU is lost"} in answer["gpus"]
    assert [each["index"] for each in answer["devices"]] == [1, 2, 3, 4, 5, 6, 7]
    driver.set({"0.lost": None})
    assert values_of(ask(), 0)["utilization_ratio"] == 0.1


def test_xid_is_told_once(driver, ask):
    """An Xid comes with the next answer, and not again."""
    driver.set({"3.xid": 79, "5.xid": 31})
    assert ask()["xids"] == [[3, 79], [5, 31]]
    assert ask()["xids"] == []
    driver.set({"3.xid": "79 again"})
    assert ask({})["xids"] == [[3, 79]]


def test_mig_instances(driver, ask):
    """Instances have memory and processes of their own; utilisation is what the driver does not tell in MIG mode."""
    driver.set({"3.mig": 2, "3/1.memory_used": 5, "3/1.processes": "41:4"})
    answer = ask()
    card = answer["gpus"][3]
    assert [each["index"] for each in card["mig"]] == [0, 1]
    assert card["mig"][1]["values"]["memory_used_bytes"] == 5.0
    assert card["mig"][1]["processes"] == [[41, 4]]
    assert card["missing"]["utilization_ratio"][0] == "unsupported"
    names = [each["uuid"][:4] for each in answer["devices"][3]["mig"]]
    assert names == ["MIG-", "MIG-"]


def test_processes(driver, ask):
    """Each process comes with its memory; where the driver hides it, with none."""
    driver.set({"0.processes": "12:1048576,13:na"})
    assert ask()["gpus"][0]["processes"] == [[12, 1048576], [13, None]]


@pytest.mark.promise("S1-078")
@pytest.mark.parametrize(("name", "code"), [("driver_not_loaded", 9), ("version_mismatch", 18), ("no_permission", 4)])
def test_driver_that_does_not_start(driver, name, code):
    """A driver that cannot be used is the answer, and the helper ends."""
    driver.set(init=name)
    link = Link()
    link.send(EVERYTHING)
    answers = link.receive(30.0)
    assert [answer["error"] for answer in answers] == [code]
    os.waitid(os.P_PID, link.pid, os.WEXITED | os.WNOWAIT)
    assert link.end() == "exit code 0"
    link.abandon(5.0)


def test_throttle_flags():
    """Each bit is one reason."""
    assert throttle_flags(0x8)["throttle_hw_slowdown"] == 1.0
    assert sum(throttle_flags(0xFFF).values()) == len(throttle_flags(0))
