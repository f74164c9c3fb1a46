"""Communication is recognised by its role, whoever wrote the kernel."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.trace.roles import COMMUNICATION, COMPUTE, COPY, NOTHING, roles
from stepscope.core.trace import KERNEL, Sparse
from tests.analysis.trace_rig import Rig

TALKING = [
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "rcclGenericKernel",
    "void ccl::v1::reduce_kernel(float*)",
    "hcom_allReduce__123_0",
    "void deep_ep::intranode::dispatch<8, 768>(int4*, float*)",
    "void deep_ep::internode::combine<__nv_bfloat16>(int4*)",
    "void internode_ll::dispatch<true, 3, 7168>(void*)",
    "notify_dispatch",
    "void c10d::symmetric_memory::two_shot_all_reduce_kernel<float>(float**)",
    "multimem_all_reduce_kernel",
    "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<float>(AllReduceParams)",
    "nvshmemi_transfer_rma_p2p",
    "userbuffers_fp16_sum_inplace_gpu_rr_rs_oop",
    "quickreduce::allreduce_prototype_twoshot",
]
COMPUTING = [
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)",
    "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits>(Params)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
    "void at::native::vectorized_gather_kernel<16, long>(char*)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)",
    "triton_poi_fused_all_add_0",
    "void at::native::index_elementwise_kernel<128>(long)",
    "void moe::topkGatingSoftmax<float>(float const*)",
    "void cub::DeviceReduceKernel<float>(float*)",
]


@pytest.mark.parametrize("name", TALKING)
def test_collectives_are_known_by_name(name):
    """Kernels of every library that communicates are communication."""
    assert roles(Rig().launch(name, (0, 1), (2, 3)).trace()).tolist() == [NOTHING, COMMUNICATION]


@pytest.mark.parametrize("name", COMPUTING)
def test_computation_is_not_taken_for_communication(name):
    """Kernels whose names only sound alike compute."""
    assert roles(Rig().launch(name, (0, 1), (2, 3)).trace()).tolist() == [NOTHING, COMPUTE]


def test_copies_have_their_own_role():
    """Copies and fills are copies."""
    assert roles(Rig().copy((0, 1), (2, 3)).trace())[1] == COPY


@pytest.mark.parametrize(
    "call", ["record_param_comms", "c10d::allreduce_", "nccl:all_reduce", "_c10d_functional::all_to_all_single"]
)
def test_a_kernel_launched_by_a_collective_call_communicates(call):
    """An unknown kernel is communication if a collective call launched it; one that computes stays what it is."""
    rig = Rig().operator(call, 0, 10).launch("k1", (1, 2), (20, 30)).launch("at::native::add", (3, 4), (40, 50))
    trace = rig.trace()
    found = {trace.named(name): role for name, role in zip(trace.name, roles(trace), strict=True)}
    assert (found["k1"], found["at::native::add"]) == (COMMUNICATION, COMPUTE)


def test_an_operator_in_between_computes():
    """Not every kernel under a collective call communicates: the innermost operator decides."""
    rig = Rig().operator("c10d::allreduce_", 0, 10).operator("mine::scale", 1, 5).launch("k1", (2, 3), (20, 30))
    assert roles(rig.trace())[-1] == COMPUTE


def test_the_trace_itself_may_tell():
    """A kernel that carries the name of its collective is communication."""
    trace = Rig().launch("k1", (0, 1), (2, 3)).trace()
    trace.texts["Collective name"] = Sparse(np.array([1]), np.array([0]))
    assert roles(trace).tolist() == [NOTHING, COMMUNICATION]


def test_unnamed_kernels_on_a_stream_of_communication():
    """On a stream that nearly only communicates, unknown kernels communicate too; those that compute do not."""
    rig = Rig().add(KERNEL, "ncclKernel", 0, 90, ("gpu", 20)).add(KERNEL, "prepare", 90, 92, ("gpu", 20))
    rig.add(KERNEL, "vectorized_elementwise_kernel", 92, 94, ("gpu", 20)).add(KERNEL, "prepare2", 0, 5, ("gpu", 7))
    trace = rig.trace()
    found = {trace.named(name): int(role) for name, role in zip(trace.name, roles(trace), strict=True)}
    assert found == {
        "ncclKernel": COMMUNICATION,
        "prepare": COMMUNICATION,
        "vectorized_elementwise_kernel": COMPUTE,
        "prepare2": COMPUTE,
    }


def test_empty_trace():
    """A trace without events has no roles."""
    assert len(roles(Rig().trace())) == 0
