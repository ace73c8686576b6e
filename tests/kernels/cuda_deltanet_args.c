/* The device, and the arguments of the kernels. */
#include "cuda_deltanet.h"

qn_gdn_gpu qn_gdn_device(void)
{
    const qn_cuda_info *info = qn_gpu_info();
    return (qn_gdn_gpu){ .max_shared_bytes = info->max_shared_bytes, .n_sms = info->n_sms };
}

qn_gdn_chunk_args qn_gdn_chunk_args_of(size_t sequences, size_t tokens, size_t k_heads, size_t v_heads, size_t head_k,
                                       size_t head_v)
{
    return (qn_gdn_chunk_args){ .state_type = QN_GDN_STATE_PLANES,
                                .tokens = (uint32_t)tokens,
                                .sequences = (uint32_t)sequences,
                                .k_heads = (uint32_t)k_heads,
                                .v_heads = (uint32_t)v_heads,
                                .head_k = (uint32_t)head_k,
                                .head_v = (uint32_t)head_v,
                                .dtype = QN_DTYPE_BF16,
                                .q_stride = (uint32_t)(k_heads * head_k),
                                .k_stride = (uint32_t)(k_heads * head_k),
                                .v_stride = (uint32_t)(v_heads * head_v),
                                .o_stride = (uint32_t)(v_heads * head_v),
                                .g_stride = (uint32_t)v_heads,
                                .beta_stride = (uint32_t)v_heads,
                                .tiled = true,
                                .normalize = true,
                                .scale = 0.0884f };
}

qn_gdn_open_args qn_gdn_open_args_of(size_t k_heads, size_t v_heads, size_t head_k, size_t head_v, size_t taps)
{
    const uint32_t values = (uint32_t)(v_heads * head_v);
    return (qn_gdn_open_args){ .k_heads = (uint32_t)k_heads,
                               .v_heads = (uint32_t)v_heads,
                               .taps = (uint32_t)taps,
                               .qkv_stride = (uint32_t)(2 * k_heads * head_k) + values,
                               .alpha_stride = (uint32_t)v_heads,
                               .beta_stride = (uint32_t)v_heads,
                               .gate_stride = values,
                               .out_stride = values,
                               .scale = 1 / sqrtf((float)head_k),
                               .eps = QN_DELTA_LAYER_EPS };
}

qn_gdn_open_args qn_gdn_open_args_of_layer(const struct delta_layer *l)
{
    qn_gdn_open_args args = qn_gdn_open_args_of(l->k_heads, l->v_heads, l->head_k, l->head_v, l->taps);
    args.conv = qn_gpu_copy(l->conv);
    args.bias = qn_gpu_copy(l->bias);
    args.factor = qn_gpu_copy(l->factor);
    args.norm = qn_gpu_copy(l->norm);
    args.grouped = true;
    return args;
}

void qn_gdn_fold(const qn_gdn_open_args *args, size_t head_k, size_t head_v)
{
    const qn_gdn_gpu gpu = qn_gdn_device();
    qn_gdn_open_args copy = *args; /* whose layout the launch sets */
    qn_launch launch;
    qn_assert_ok(qn_gdn_gpu_open_fold(&copy, head_k, head_v, &gpu, &launch));
    qn_gpu_launch(&launch, &copy);
}
