import pytest

from lab.papers.downscaling.tensor_cores import Shares, is_contraction, shares_of, uses_tensor_cores

TF32 = "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32"
PLAIN = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute"
DEPTHWISE = "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(int)"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)"


def test_names_tell_tensor_cores():
    assert uses_tensor_cores(TF32)
    assert uses_tensor_cores("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(Params)")
    assert not uses_tensor_cores(PLAIN)
    assert not uses_tensor_cores("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(Params)")


def test_depthwise_convolutions_could_not_use_them():
    assert is_contraction(PLAIN)
    assert not is_contraction(DEPTHWISE)
    assert not is_contraction(POINTWISE)


def test_shares_are_of_time():
    shares = shares_of({TF32: 30.0, PLAIN: 10.0, DEPTHWISE: 20.0, POINTWISE: 40.0})
    assert shares == Shares(100.0, 40.0, 30.0)
    assert (shares.of_all, shares.of_contractions) == (0.3, 0.75)
    assert Shares(1.0, 0.0, 0.0).of_contractions == pytest.approx(0.0)
