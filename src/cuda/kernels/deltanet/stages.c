/* Launches of the stages of the chunked delta rule: checks of arguments, grids, shared memory. */
#include "cuda/kernels/deltanet/stages.h"

#include "quern/kernels.h"

#include <inttypes.h>

#include "cuda/kernels/variants.h"
#include "cuda/kernels/deltanet/variants.def"

enum { MAX_STAGES = 3 };

static qn_status check_elements(const qn_gdn_chunk_args *r)
{
    if (r->dtype != QN_DTYPE_F16 && r->dtype != QN_DTYPE_BF16)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "a stage of the delta rule with data type %u: expected %d (f16) or %d (bf16)", r->dtype,
                       (int)QN_DTYPE_F16, (int)QN_DTYPE_BF16);
    return QN_OK;
}

static qn_status check_shared(uint32_t needed, uint32_t max_shared_bytes)
{
    if (needed > max_shared_bytes)
        return qn_fail(QN_ERR_UNSUPPORTED, "a stage of the delta rule: %u bytes of shared memory, expected at least %u",
                       max_shared_bytes, needed);
    return QN_OK;
}

static qn_status check_shape(const qn_gdn_chunk_args *r)
{
    QN_TRY(qn_gdn_gpu_check_shape(r));
    if (r->tokens == 0 || r->tokens > INT32_MAX / 2)
        return qn_fail(QN_ERR_INVALID, "a stage of the delta rule with %u tokens: expected 1 to %d", r->tokens,
                       INT32_MAX / 2);
    return QN_OK;
}

static void fill(qn_gdn_stage_args *a, const char *function, uint32_t x, uint32_t y, uint32_t z, uint32_t threads,
                 uint32_t shared_bytes, qn_launch *out)
{
    *out = (qn_launch){ .function = function,
                        .grid = { x, y, z },
                        .block = { threads, 1, 1 },
                        .shared_bytes = shared_bytes,
                        .args_bytes = sizeof *a,
                        .pdl = true };
}

/* The variant of stages that depend neither on keys nor on elements. */
enum { ANY_HEAD_K = 128 };

/* Fills the launch of a stage whose blocks have a head, or a block of heads, of a chunk each: n of a chunk. */
static qn_status fill_chunks(qn_gdn_stage_args *a, const char *function, uint32_t n, uint32_t threads,
                             uint32_t shared_bytes, qn_launch *out)
{
    qn_gdn_chunk_args *r = &a->rule;
    const uint64_t tokens = r->cu_seqlens ? r->tokens : (uint64_t)r->tokens * r->sequences;
    r->chunks = (uint32_t)(tokens / QN_GDN_CHUNK + r->sequences);
    if ((uint64_t)r->chunks * n > INT32_MAX)
        return qn_fail(QN_ERR_INVALID,
                       "%s: %" PRIu64 " tokens with %u heads, at most %d blocks of 64 tokens are allowed", function,
                       tokens, n, INT32_MAX);
    fill(a, function, r->chunks * n, 1, 1, threads, shared_bytes, out);
    out->variant = QN_GPU_VARIANT(stages, r->head_k, r->dtype == QN_DTYPE_F16);
    return QN_OK;
}

qn_status qn_gdn_gpu_cumsum(qn_gdn_stage_args *a, qn_launch *out)
{
    QN_TRY(check_shape(&a->rule));
    QN_TRY(fill_chunks(a, "qn_gdn_cumsum", (a->rule.v_heads + QN_GDN_STAGE_THREADS - 1) / QN_GDN_STAGE_THREADS,
                       QN_GDN_STAGE_THREADS, 0, out));
    out->variant = QN_GPU_VARIANT(stages, ANY_HEAD_K, 0);
    return QN_OK;
}

qn_status qn_gdn_gpu_kkt(qn_gdn_stage_args *a, qn_launch *out)
{
    QN_TRY(check_shape(&a->rule));
    QN_TRY(check_elements(&a->rule));
    return fill_chunks(a, "qn_gdn_kkt", a->rule.k_heads, QN_GDN_STAGE_THREADS, QN_GDN_KKT_BYTES(a->rule.head_k), out);
}

qn_status qn_gdn_gpu_tril_inverse(qn_gdn_stage_args *a, qn_launch *out)
{
    QN_TRY(check_shape(&a->rule));
    QN_TRY(fill_chunks(a, "qn_gdn_tril_inverse", a->rule.v_heads, QN_GDN_INVERSE_THREADS, 0, out));
    out->variant = QN_GPU_VARIANT(stages, ANY_HEAD_K, 0);
    return QN_OK;
}

qn_status qn_gdn_gpu_recompute_w_u(qn_gdn_stage_args *a, uint32_t max_shared_bytes, qn_launch *out)
{
    const uint32_t bytes = QN_GDN_W_U_BYTES(a->rule.head_k, a->rule.head_v);
    QN_TRY(check_shape(&a->rule));
    QN_TRY(check_elements(&a->rule));
    QN_TRY(check_shared(bytes, max_shared_bytes));
    return fill_chunks(a, "qn_gdn_recompute_w_u", a->rule.v_heads, QN_GDN_STAGE_THREADS, bytes, out);
}

qn_status qn_gdn_gpu_state_pass(qn_gdn_stage_args *a, uint32_t max_shared_bytes, qn_launch *out)
{
    const qn_gdn_chunk_args *r = &a->rule;
    uint32_t n_stages = MAX_STAGES;
    QN_TRY(check_shape(r));
    QN_TRY(check_elements(r));
    while (n_stages > 1 && QN_GDN_STATE_PASS_BYTES(r->head_k, n_stages) > max_shared_bytes)
        n_stages--;
    QN_TRY(check_shared(QN_GDN_STATE_PASS_BYTES(r->head_k, n_stages), max_shared_bytes));
    fill(a, "qn_gdn_state_pass", (r->head_v + QN_GDN_SLICE - 1) / QN_GDN_SLICE, r->v_heads, r->sequences,
         QN_GDN_STATE_PASS_THREADS, QN_GDN_STATE_PASS_BYTES(r->head_k, n_stages), out);
    out->variant = QN_GPU_VARIANT(state_pass, r->head_k, n_stages, r->dtype == QN_DTYPE_F16);
    return QN_OK;
}

qn_status qn_gdn_gpu_chunk_output(qn_gdn_stage_args *a, uint32_t max_shared_bytes, qn_launch *out)
{
    const uint32_t bytes = QN_GDN_OUTPUT_BYTES(a->rule.head_k);
    QN_TRY(check_shape(&a->rule));
    QN_TRY(check_elements(&a->rule));
    QN_TRY(check_shared(bytes, max_shared_bytes));
    return fill_chunks(a, "qn_gdn_chunk_output", a->rule.v_heads, QN_GDN_STAGE_THREADS, bytes, out);
}
