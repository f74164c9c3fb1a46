from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.samplers.network import NetworkSampler, counted_interfaces, parse_net_dev
from tests.samplers.machines import SECOND, answer_or_error, write

HEAD = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
"""


def net_dev(**received):
    lines = (f"{name:>6}: {count} 1 2 3 0 0 0 0 {count * 2} 1 4 5 0 0 0 0\n" for name, count in received.items())
    return {"proc/net/dev": HEAD + "".join(lines)}


def interface(root, name, *entries):
    return write(root, {f"sys/class/net/{name}/{entry}": "" for entry in ("operstate", *entries)})


@pytest.mark.promise("S1-008")
def test_rates(tmp_path):
    """Bytes per second are summed over interfaces, without what the machine sends to itself."""
    sampler = NetworkSampler(write(tmp_path, net_dev(lo=0, eth0=0, eth1=0)))
    assert sampler.sample(0) == {}
    write(tmp_path, net_dev(lo=999, eth0=1000, eth1=500))
    values = sampler.sample(SECOND)
    assert values["network/received_bytes_per_second"] == 1500
    assert values["network/sent_bytes_per_second"] == 3000
    assert values["network/errors_per_second"] == values["network/drops_per_second"] == 0


def test_each_byte_once(tmp_path):
    """On a host the adapters count, not the bond over them, bridges, nor the ends of containers."""
    interface(tmp_path, "ens1", "device/vendor", "master")
    interface(tmp_path, "bond0", "lower_ens1")
    interface(tmp_path, "docker0", "lower_veth1")
    interface(tmp_path, "veth1", "master")
    interface(tmp_path, "cali7")
    names = ["lo", "ens1", "bond0", "docker0", "veth1", "cali7"]
    assert counted_interfaces(names, tmp_path) == {"ens1"}


def test_inside_a_container(tmp_path):
    """In a container the virtual eth0 counts, also beside an adapter that was handed in."""
    interface(tmp_path, "eth0")
    assert counted_interfaces(["lo", "eth0"], tmp_path) == {"eth0"}
    interface(tmp_path, "net1", "device/vendor")
    assert counted_interfaces(["lo", "eth0", "net1"], tmp_path) == {"eth0", "net1"}
    assert counted_interfaces(["lo", "tap0"], tmp_path) == {"tap0"}


def test_infiniband(tmp_path):
    """InfiniBand counts words of 4 bytes; errors are added up every 10 s."""
    folder = "sys/class/infiniband/mlx5_0/ports/1/counters"
    write(tmp_path, {f"{folder}/port_rcv_data": "100\n", f"{folder}/port_xmit_data": "0\n"})
    write(tmp_path, {f"{folder}/symbol_error": "2\n", f"{folder}/link_downed": "1\n"})
    sampler = NetworkSampler(tmp_path)
    assert sampler.sample(0) == {"network/infiniband_errors_total": 3.0}
    write(tmp_path, {f"{folder}/port_rcv_data": "1100\n", f"{folder}/port_xmit_data": "500\n"})
    values = sampler.sample(SECOND)
    assert values["network/infiniband_received_bytes_per_second"] == 4000
    assert values["network/infiniband_sent_bytes_per_second"] == 2000
    assert "network/infiniband_errors_total" in sampler.sample(10 * SECOND)


def test_nothing_there(tmp_path):
    """A machine without network files gives no values, and says so."""
    sampler = NetworkSampler(tmp_path)
    assert sampler.sample(0) == {}
    assert set(sampler.absent()) == {"network", "network/infiniband_*"}


@given(st.binary(max_size=200))
def test_parser_meets_anything(data):
    """Whatever stands in the file, parsing gives counts or a ValueError."""
    found = answer_or_error(parse_net_dev, b"\n\neth0: 1 2 3 4 5 6 7 8 9 1 2 " + data)
    assert isinstance(found, ValueError) or all(len(counts) == 4 for counts in found.values())


def test_this_machine():
    """On the machine that runs the test rates are not negative."""
    sampler = NetworkSampler()
    sampler.sample(time.monotonic_ns())
    assert all(value >= 0 for value in sampler.sample(time.monotonic_ns()).values())
