from __future__ import annotations

import pytest

from stepscope.analysis.trace.kernels import NAMES as FAMILY_NAMES
from stepscope.analysis.trace.kernels import _family, families, family_table, findings, kernel_table
from stepscope.analysis.trace.links import link
from stepscope.analysis.trace.window import TraceWindow, window_of
from tests.analysis.trace_rig import Rig


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("ampere_sgemm_128x64_nn", "gemm"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "gemm"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>(Params)", "gemm"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized>(Params)", "convolution"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<FlashAttnFwdSm90> >(Params)", "attention"),
        ("void pytorch_flash::flash_fwd_kernel<Traits<cutlass::bfloat16_t> >(Params)", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(Params)", "attention"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)", "normalisation"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(float)", "normalisation"),
        ("triton_per_fused_native_layer_norm_3", "normalisation"),
        ("triton_poi_fused_convolution_relu_0", "elementwise"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::index_thing>(int)", "elementwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdam>(int)", "optimizer"),
        ("void at::native::reduce_kernel<512, 1, at::native::MeanOps<float> >(int)", "reduction"),
        ("void split_embedding_backward_codegen_rowwise_adagrad_kernel<float>(int)", "embedding"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int>(float)", "gemm"),
        ("void fbgemm_gpu::permute_2D_data_kernel<int>(int)", "indexing"),
        ("something_new", "other"),
    ],
)
def test_a_kernel_has_the_family_of_what_it_does(name, family):
    """The name without its template arguments decides, unless it says nothing."""
    assert FAMILY_NAMES[_family(name)] == family


def test_what_is_launched_in_the_optimizer_is_the_optimizers():
    """An elementwise kernel of the optimizer's step is not elementwise work of the model."""
    rig = Rig().annotation("Optimizer.step#SGD.step", 0, 10).operator("aten::add_", 1, 9)
    rig.launch("elementwise_kernel", (2, 3), (20, 30)).launch("elementwise_kernel", (12, 13), (30, 40))
    rig.launch("ncclDevKernel_AllReduce_Sum_f32", (14, 15), (40, 60), stream=9).copy((16, 17), (60, 61))
    assert families(rig.trace(), link(rig.trace())) == ["optimizer", "elementwise", "communication", "memcpy"]


def test_gain_is_the_time_in_which_nothing_else_ran():
    """A kernel that another one covers brings nothing by its absence."""
    trace = (
        Rig()
        .launch("sgemm", (0, 1), (0, 100))
        .launch("relu", (1, 2), (20, 40), stream=8)
        .launch("norm", (2, 3), (150, 200))
    ).trace()
    rows = {row["name"]: row for row in kernel_table(trace, window_of(trace), link(trace))}
    assert [rows[name]["gain_percent"] for name in ("sgemm", "relu", "norm")] == [40.0, 0.0, 25.0]
    assert rows["sgemm"]["total_us"] == 100
    assert sum(row["percent"] for row in rows.values()) == pytest.approx(100)
    assert list(rows) == ["sgemm", "norm", "relu"]


def test_only_what_lies_in_the_window_counts():
    """A kernel at the edge counts with its part, one outside not at all."""
    trace = Rig().launch("a", (0, 1), (0, 100)).launch("b", (1, 2), (300, 400)).trace()
    assert [
        (row["name"], row["total_us"])
        for row in kernel_table(trace, TraceWindow("given", 50_000, 200_000), link(trace))
    ] == [("a", 50)]


def test_a_family_that_takes_much_is_found():
    """The finding names the family, what it would bring, and what to do."""
    trace = Rig().launch("elementwise_kernel", (0, 1), (0, 60)).launch("zzz", (1, 2), (60, 100)).trace()
    (found,) = findings(family_table(trace, window_of(trace), link(trace)))
    assert "elementwise" in found.text
    assert found.gain_ratio == pytest.approx(0.6)
    assert "torch.compile" in found.remedy


def test_no_kernels_are_no_rows():
    """A trace without a device has empty tables."""
    trace = Rig().operator("aten::add", 0, 5).trace()
    assert (
        kernel_table(trace, window_of(trace), link(trace)) == family_table(trace, window_of(trace), link(trace)) == []
    )
