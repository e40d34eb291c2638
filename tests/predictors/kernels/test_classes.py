import pytest

from foretell.predictors.kernels.classes import KernelClass, kernel_class

ANONYMOUS = "void at::native::(anonymous namespace)::"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT", "cublas product 64x8 tn"),
        ("nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "cublas product 256x128 nn"),
        ("nvjet_sm90_tst_64x32_64x16_4x1_v_bz_splitK_bias_TNT", "cublas product-split 64x32 tn"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
         "cublas product 64x64 tn"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x32x16_stage1",
         "cudnn convolution 128x32 nhwc"),
        ("sm90_xmma_wgrad_indexed_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize256x64x64_g1",
         "cudnn convolution-weights 256x64 nhwc"),
        ("sm90_xmma_fprop_image_first_layer_f16f16_f32_f16_nhwckrsc_nhwc_hmma_k64c4r7s7_stride2x2_tile16x64x64_tensor1688",
         "cudnn convolution 16x64 nhwc"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align1>(P)", "cublas product 64x64 nt"),
        ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_tn_align1>(Params)",
         "cublas product 64x64 tn"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc_align4>(Params)",
         "cudnn convolution-data 256x64 nhwc"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(Params)", "cutlass attention 64x64"),
        ("void implicit_convolve_sgemm<__half, __half, 1024, 5, 5, 3, 3, 3, 1>(int)", "cudnn convolution-simple"),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<float, float>(params)", "cudnn layout"),
        ("std::enable_if<true, void>::type internal::gemvx::kernel<int, float>(int)", "cublas product-vector"),
        ("void elemWiseRNNcell<__nv_bfloat16, (cudnnRNNMode_t)3>(int)", "cudnn recurrent-cell"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*> >",
         "pytorch pointwise-vectors"),
        ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::FillFunctor<float> >",
         "pytorch pointwise-strided"),
        (ANONYMOUS + "CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4, 64, 64>", "pytorch concatenate"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>", "pytorch softmax-warp"),
        ("Memcpy DtoD (Device -> Device)", "cuda copy"),
        ("triton_poi_fused_add_relu_3", "inductor pointwise"),
        ("somebodys_kernel", "other other"),
    ],
)  # fmt: skip
def test_a_class_names_library_algorithm_tile_and_layout(name, expected):
    assert str(kernel_class(name)) == expected


def test_types_and_counts_make_no_class():
    half, single = "void at::native::reduce_kernel<512, 1, c10::Half>", "void at::native::reduce_kernel<128, 4, float>"
    assert kernel_class(half) == kernel_class(single) == KernelClass("pytorch", "reduce")
