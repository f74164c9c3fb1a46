from __future__ import annotations

import pytest

from stepscope.analysis.trace import critical_path as module
from stepscope.analysis.trace.critical_path import UNKNOWN_KIND, Chains, critical_path, findings, median_step, walk
from stepscope.analysis.trace.graph import graph
from stepscope.analysis.trace.kernels import short_name
from stepscope.analysis.trace.links import link
from stepscope.analysis.trace.window import TraceWindow, window_of
from tests.analysis.trace_rig import Rig


def path(rig: Rig, window: TraceWindow | None = None) -> dict:
    trace = rig.trace()
    found = critical_path(trace, window or window_of(trace), link(trace))
    assert found is not None
    assert sum(entry["total_us"] for entry in found["kinds"]) == pytest.approx(found["length_us"])
    assert sum(entry["total_us"] for entry in found["parts"]) == pytest.approx(found["length_us"])
    return found


def kinds(found: dict) -> dict[str, float]:
    return {entry["kind"]: entry["total_us"] for entry in found["kinds"]}


def gains(found: dict) -> dict[str, float]:
    return {entry["name"]: entry["gain_percent"] for entry in found["parts"]}


def device_bound() -> Rig:
    return Rig().launch("a", (0, 2), (5, 105)).launch("b", (3, 5), (105, 205)).launch("c", (6, 8), (205, 305))


def host_bound() -> Rig:
    """Kernels of 10 µs, each launched by an operator of 100 µs."""
    rig = Rig()
    for place in range(4):
        at = 100 * place
        rig.operator(f"op{place}", at, at + 100).launch(f"k{place}", (at + 90, at + 92), (at + 95, at + 105))
    return rig


def test_a_busy_stream_is_its_own_path():
    """Where work waits in the queue, the path is the work."""
    found = path(device_bound())
    assert kinds(found) == {"compute": 300.0}
    assert gains(found)["b"] == pytest.approx(100 / 3)
    assert found["host"]["percent"] == 0


def test_a_device_that_waits_for_launches_has_the_host_on_its_path():
    """Only the last kernel is on the path; the rest of the time is the operators'."""
    found = path(host_bound())
    assert kinds(found)["compute"] == 10
    assert found["host"]["percent"] > 95
    assert "host" in findings(found)[0].text
    assert findings(found)[0].gain_ratio == pytest.approx(found["host"]["gain_percent"] / 100)


def test_shortening_brings_no_more_than_what_is_hidden_behind_it():
    """Without the long kernel, the second stream becomes the limit."""
    rig = Rig().launch("long", (0, 1), (5, 105)).launch("other", (2, 3), (5, 85), stream=9)
    rig.launch("last", (4, 5), (105, 115)).call("cudaDeviceSynchronize", 6, 116)
    rig.launch("end", (117, 118), (120, 130))
    found = path(rig)
    assert gains(found)["long"] == pytest.approx(100 * 30 / 125, abs=3)


def test_a_synchronising_call_leads_to_the_work_it_waited_for():
    """The host stands in the call, but the path is the kernel."""
    rig = Rig().launch("k", (0, 2), (5, 505)).call("cudaStreamSynchronize", 3, 510)
    rig.operator("aten::item", 512, 550).launch("after", (540, 542), (545, 560))
    found = kinds(path(rig))
    assert found["compute"] == 515
    assert found["synchronisation"] == 5


def test_a_copy_that_blocks_its_call_leads_to_the_copy():
    """A copy to pageable memory returns when it is done, whatever the call is named."""
    rig = Rig().copy((0, 100), (5, 98)).launch("k", (101, 103), (105, 110))
    assert kinds(path(rig))["copy"] == 93


def test_the_backward_thread_continues_the_path_of_the_main_thread():
    """Main waits in an annotation while another thread launches: the path goes through that thread."""
    rig = Rig().operator("forward", 0, 100).launch("f", (10, 12), (15, 20)).annotation("backward", 100, 300)
    rig.operator("grad", 105, 290, thread=2).launch("g", (280, 282), (284, 288), thread=2)
    rig.operator("step", 300, 350).launch("s", (340, 342), (345, 360))
    names = {entry["name"] for entry in path(rig)["parts"]}
    assert {"forward", "grad", "step"} <= names
    assert next(entry for entry in path(rig)["outer"] if entry["name"] == "grad")["total_us"] == 185


def test_a_wait_between_streams_is_inferred_from_its_moment():
    """Work that was long ready and started when another stream ended something waited for it."""
    rig = Rig().launch("compute", (0, 1), (5, 205)).launch("reduce", (2, 3), (206, 306), stream=9)
    rig.launch("warm", (0.2, 0.4), (3, 4), stream=9)
    found = path(rig, TraceWindow("given", 5_000, 306_000))
    assert kinds(found)["compute"] == 300


def test_the_step_of_median_length_is_taken_as_the_device_saw_it():
    """A step lasts from the end of the work of the one before to the end of its own."""
    rig = Rig()
    for number, length in enumerate((100, 300, 120, 110)):
        at = (0, 100, 400, 520)[number]
        rig.annotation(f"ProfilerStep#{number}", at, at + length)
        rig.launch("k", (at + 1, at + 2), (at + 10, at + length + 5))
    trace = rig.trace()
    part, label = median_step(trace, window_of(trace), link(trace))
    assert (label, part.start, part.end) == ("step 2", 405_000, 525_000)


def test_replaying_without_change_gives_what_was():
    """The model of what waits for what reproduces the trace."""
    for rig in (device_bound(), host_bound()):
        trace = rig.trace()
        moments = graph(trace, window_of(trace), link(trace))
        assert Chains.of(moments).replay(moments.edges.length) == moments.time.tolist()


def test_time_of_which_nothing_is_known_is_called_so():
    """A kernel without a launch: nobody knows what it waited for."""
    trace = Rig().add(8, "a", 0, 10, ("gpu", 7)).add(8, "b", 50, 60, ("gpu", 9)).trace()
    window = window_of(trace)
    segments = walk(graph(trace, window, link(trace)), window)
    assert (segments.start[0], segments.end[0], segments.kind[0]) == (0, 50_000, UNKNOWN_KIND)


def test_of_too_much_only_the_middle_is_looked_at(monkeypatch):
    """A window of millions of events costs no more than its middle, and the answer says so."""
    monkeypatch.setattr(module, "MOST_EVENTS", 40)
    rig = Rig()
    for place in range(100):
        rig.launch("k", (10 * place, 10 * place + 1), (10 * place + 2, 10 * place + 9))
    found = path(rig)
    assert found["of"].startswith("the middle")
    assert found["length_us"] < 250


def test_a_trace_without_a_device_has_the_path_of_its_threads():
    """CPU-only training has a critical path too."""
    found = path(Rig().operator("aten::mm", 0, 80).operator("aten::add", 90, 100))
    assert kinds(found) == {"operator": 90.0, "host gap": 10.0}


def test_an_empty_trace_has_no_path():
    """Nothing in, nothing out."""
    trace = Rig().trace()
    assert critical_path(trace, window_of(trace), link(trace)) is None
    assert findings(None) == []


def told(host, gain, *outer, part=("aten::mm", 30.0)):
    """Return the sentences on a path with such shares."""
    rows = [{"name": name, "percent": percent, "gain_percent": percent} for name, percent in outer]
    path = {"of": "step 3", "length_us": 1.0, "kinds": [{"kind": "compute"}, {"kind": "operator"}]}
    path |= {"host": {"percent": host, "gain_percent": gain}, "outer": rows}
    path |= {"parts": [{"kind": "compute", "name": part[0], "percent": part[1], "gain_percent": part[1]}]}
    return {one.kind: one for one in findings(path)}


def test_a_path_through_the_host_is_told_only_where_something_is_gained():
    """On a device that is idle 0.4 % of the time fewer launches bring nothing."""
    assert "critical_path_host" not in told(95, 0.4)
    assert "launch fewer" in told(95, 60)["critical_path_host"].remedy
    loading = told(95, 60, ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 50.0))
    assert "launch" not in loading["critical_path_host"].remedy


def test_a_range_around_everything_is_no_part_to_shorten():
    """Nobody can take out the whole step."""
    assert "aten::mm" in told(95, 60, ("train_step", 99.8))["critical_path"].text


def test_a_kernel_is_named_without_its_template():
    """Some names have nine lines."""
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*,"
    )
    name += " 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)"
    assert short_name(name) == "at::native::vectorized_elementwise_kernel<…>"
    assert short_name("sm90_xmma_gemm") == "sm90_xmma_gemm"
    assert len(short_name("x" * 5000)) == 80
    assert "vectorized_elementwise_kernel<…>: step 3 would" in told(10, 0, part=(name, 12.0))["critical_path"].text
