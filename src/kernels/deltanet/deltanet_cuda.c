/* Launches of the Gated DeltaNet kernels: checks of arguments, kernel variants, grids. */
#include "kernels/deltanet/deltanet_cuda.h"

#include "kernels/variants.h"
#include "kernels/deltanet/variants.def"

enum { MAX_BLOCKS = 65535, MAX_DIM = 256, DIM_UNIT = 16 };

/* bf16 is for the kernels around the chunk kernels: convolution, norm, recurrence. */
static qn_status variant_of(size_t head_k, size_t head_v, bool bf16, qn_gpu_variant *variant)
{
    if (head_k == 0 || head_k > MAX_DIM || head_k % DIM_UNIT || head_v == 0 || head_v > MAX_DIM || head_v % DIM_UNIT)
        return qn_fail(QN_ERR_INVALID, "delta rule with keys of %zu and values of %zu: expected multiples of %d up to %d",
                       head_k, head_v, DIM_UNIT, MAX_DIM);
    if (bf16 && (head_k != QN_GDN_HEAD_K || head_v % QN_GDN_SLICE))
        return qn_fail(QN_ERR_INVALID,
                       "delta rule in bf16 with keys of %zu and values of %zu: expected %d, and a multiple of %d", head_k,
                       head_v, QN_GDN_HEAD_K, QN_GDN_SLICE);
    *variant = QN_GPU_VARIANT(step, head_k, head_v, bf16);
    return QN_OK;
}

static qn_status check_heads(uint32_t k_heads, uint32_t v_heads)
{
    if (k_heads == 0 || v_heads == 0 || v_heads % k_heads || v_heads > MAX_BLOCKS / 4)
        return qn_fail(QN_ERR_INVALID, "delta rule with %u key heads and %u value heads: expected a multiple, at most %d",
                       k_heads, v_heads, MAX_BLOCKS / 4);
    return QN_OK;
}

static qn_status check_grid(const char *what, size_t n)
{
    if (n == 0 || n > MAX_BLOCKS)
        return qn_fail(QN_ERR_INVALID, "delta rule over %zu %s: expected 1 to %d in one launch", n, what, MAX_BLOCKS);
    return QN_OK;
}

static qn_status check_stride(const char *what, uint32_t stride, size_t row)
{
    if (stride < row)
        return qn_fail(QN_ERR_INVALID, "rows of %s are %u elements apart, and have %zu", what, stride, row);
    return QN_OK;
}

static size_t width_of(uint32_t k_heads, uint32_t v_heads, size_t head_k, size_t head_v)
{
    return 2 * k_heads * head_k + v_heads * head_v;
}

size_t qn_gdn_gpu_record_bytes(size_t tokens, size_t sequences, size_t v_heads)
{
    return (tokens / QN_GDN_CHUNK_TOKENS + sequences) * v_heads * QN_GDN_RECORD;
}

size_t qn_gdn_gpu_state_bytes(size_t v_heads, size_t head_k, size_t head_v)
{
    return v_heads * head_k * head_v * sizeof(float);
}

size_t qn_gdn_gpu_input_bytes(size_t k_heads, size_t v_heads, size_t head_k, size_t head_v, size_t taps)
{
    return taps * (2 * k_heads * head_k + v_heads * head_v) * sizeof(float);
}

static qn_status check_chunk_args(const qn_gdn_chunk_args *a, size_t head_k)
{
    qn_status status = check_heads(a->k_heads, a->v_heads);
    if (!status)
        status = check_grid("sequences", a->sequences);
    if (!status)
        status = check_stride("q", a->q_stride, a->k_heads * head_k);
    if (!status)
        status = check_stride("k", a->k_stride, a->k_heads * head_k);
    if (!status)
        status = check_stride("v", a->v_stride, (size_t)a->v_heads * a->head_v);
    if (!status)
        status = check_stride("o", a->o_stride, (size_t)a->v_heads * a->head_v);
    if (!status)
        status = check_stride("g and beta", a->gate_stride, a->v_heads);
    return status;
}

/* ---- Chunks ---- */

qn_status qn_gdn_gpu_chunk(const qn_gdn_chunk_args *a, size_t longest, uint32_t max_shared_bytes, qn_launch launches[2])
{
    qn_gpu_variant unused;
    const size_t chunks = (longest + QN_GDN_CHUNK_TOKENS - 1) / QN_GDN_CHUNK_TOKENS;
    size_t n_stages = 3;
    qn_status status = variant_of(QN_GDN_HEAD_K, a->head_v, true, &unused);
    if (!status)
        status = check_chunk_args(a, QN_GDN_HEAD_K);
    if (status)
        return status;
    if ((a->q | a->k | a->v | a->o | a->records) % 16 || (a->q_stride | a->k_stride | a->v_stride | a->o_stride) % 8)
        return qn_fail(QN_ERR_INVALID,
                       "delta rule over chunks: an address is no multiple of 16, or a stride none of 8 elements");
    if (chunks > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "delta rule over chunks: a sequence of %zu tokens is too long", longest);
    while (n_stages > 0 && QN_GDN_ADVANCE_BYTES + n_stages * QN_GDN_STAGE_BYTES > max_shared_bytes)
        n_stages--;
    if (n_stages == 0)
        return qn_fail(QN_ERR_UNSUPPORTED, "delta rule over chunks: %u bytes of shared memory, expected at least %d",
                       max_shared_bytes, QN_GDN_ADVANCE_BYTES + QN_GDN_STAGE_BYTES);
    launches[0] = (qn_launch){ .variant.source = &prepare_source,
                               .function = "qn_gdn_prepare",
                               .grid = { chunks ? (uint32_t)chunks : 1, a->k_heads, a->sequences },
                               .block = { QN_GDN_PREPARE_THREADS, 1, 1 },
                               .shared_bytes = QN_GDN_PREPARE_BYTES,
                               .args_bytes = sizeof *a,
                               .pdl = true };
    launches[1] = launches[0];
    launches[1].variant = QN_GPU_VARIANT(advance, n_stages);
    launches[1].function = "qn_gdn_advance";
    launches[1].grid[0] = a->head_v / QN_GDN_SLICE;
    launches[1].grid[1] = a->v_heads;
    launches[1].block[0] = QN_GDN_ADVANCE_THREADS;
    launches[1].shared_bytes = (uint32_t)(QN_GDN_ADVANCE_BYTES + n_stages * QN_GDN_STAGE_BYTES);
    return QN_OK;
}

/* ---- Token by token ---- */

static qn_launch step_launch(qn_gpu_variant variant, const char *function, size_t x, size_t y, size_t z, size_t threads,
                             size_t args_bytes)
{
    return (qn_launch){ .variant = variant,
                        .function = function,
                        .grid = { (uint32_t)x, (uint32_t)y, (uint32_t)z },
                        .block = { (uint32_t)threads, 1, 1 },
                        .args_bytes = (uint32_t)args_bytes,
                        .pdl = true };
}

qn_status qn_gdn_gpu_recurrent(const qn_gdn_chunk_args *a, size_t head_k, bool bf16, qn_launch *launch)
{
    qn_gpu_variant variant = { 0 };
    qn_status status = variant_of(head_k, a->head_v, bf16, &variant);
    if (!status)
        status = check_chunk_args(a, head_k);
    if (status)
        return status;
    *launch = step_launch(variant, "qn_gdn_recurrent", (a->head_v + QN_GDN_RECURRENT_VALUES - 1) / QN_GDN_RECURRENT_VALUES,
                          a->v_heads, a->sequences, QN_GDN_RECURRENT_VALUES * QN_GDN_ROW_LANES, sizeof *a);
    return QN_OK;
}

static qn_status check_taps(uint32_t taps)
{
    if (taps == 0 || taps > QN_GDN_MAX_TAPS)
        return qn_fail(QN_ERR_INVALID, "a convolution of %u taps: expected 1 to %d", taps, QN_GDN_MAX_TAPS);
    return QN_OK;
}

qn_status qn_gdn_gpu_step(const qn_gdn_step_args *a, size_t head_k, size_t head_v, qn_launch *launch)
{
    qn_gpu_variant variant = { 0 };
    qn_status status = variant_of(head_k, head_v, false, &variant);
    if (!status)
        status = check_heads(a->k_heads, a->v_heads);
    if (!status)
        status = check_taps(a->taps);
    if (!status)
        status = check_grid("rows", a->rows);
    if (!status)
        status = check_stride("q, k and v", a->qkv_stride, width_of(a->k_heads, a->v_heads, head_k, head_v));
    if (!status)
        status = check_stride("gates", a->gate_stride, a->v_heads * head_v);
    if (!status)
        status = check_stride("the result", a->out_stride, a->v_heads * head_v);
    if (status)
        return status;
    const size_t values = head_v < 128 ? head_v : 128; /* per pass */
    *launch = step_launch(variant, "qn_gdn_step", a->v_heads, a->rows, 1, values * QN_GDN_ROW_LANES, sizeof *a);
    return QN_OK;
}

qn_status qn_gdn_gpu_conv(const qn_gdn_conv_args *a, size_t head_k, size_t head_v, size_t longest, bool bf16, qn_launch *launch)
{
    qn_gpu_variant variant = { 0 };
    const size_t row_blocks = (longest + QN_GDN_CONV_ROWS - 1) / QN_GDN_CONV_ROWS,
                 width = width_of(a->k_heads, a->v_heads, head_k, head_v);
    qn_status status = variant_of(head_k, head_v, bf16, &variant);
    if (!status)
        status = check_heads(a->k_heads, a->v_heads);
    if (!status)
        status = check_taps(a->taps);
    if (!status)
        status = check_grid("sequences", a->sequences);
    if (!status)
        status = check_grid("blocks of tokens", row_blocks);
    if (!status)
        status = check_stride("q, k and v", a->qkv_stride, width);
    if (!status)
        status = check_stride("the convolution's result", a->out_stride, width);
    if (status)
        return status;
    *launch = step_launch(variant, "qn_gdn_conv", 2 * a->k_heads + a->v_heads, row_blocks, a->sequences, 128, sizeof *a);
    return QN_OK;
}

qn_status qn_gdn_gpu_norm(const qn_gdn_norm_args *a, size_t head_k, size_t head_v, bool bf16, qn_launch *launch)
{
    qn_gpu_variant variant = { 0 };
    qn_status status = variant_of(head_k, head_v, bf16, &variant);
    if (!status)
        status = check_heads(a->k_heads, a->v_heads);
    if (!status)
        status = check_grid("rows", a->rows);
    if (!status)
        status = check_stride("o", a->o_stride, a->v_heads * head_v);
    if (!status)
        status = check_stride("gates", a->gate_stride, a->v_heads * head_v);
    if (!status)
        status = check_stride("the result", a->out_stride, a->v_heads * head_v);
    if (status)
        return status;
    *launch = step_launch(variant, "qn_gdn_norm", (a->v_heads + 3) / 4, a->rows, 1, 128, sizeof *a);
    return QN_OK;
}
