/* Gated DeltaNet of quern/cuda.h: checks of the arguments, then the launches of kernels/deltanet/deltanet_cuda.h. */
#include "device/cuda/api.h"

#include "kernels/deltanet/deltanet_cuda.h"

#include <math.h>

typedef struct gdn_call {
    const qn_cuda_gdn_shape *shape;
    qn_dtype dtype;
    size_t rows, n_sequences, longest;
    qn_gdn_chunk_args args;
    qn_gdn_division division;
} gdn_call;

/* bf16 with these sizes goes to the tensor cores. */
static bool is_chunked(const gdn_call *c)
{
    return c->dtype == QN_DTYPE_BF16;
}

static qn_status check_lengths(gdn_call *c)
{
    const qn_cuda_gdn_shape *s = c->shape;
    if (s->batch == 0 || s->tokens == 0 || __builtin_mul_overflow(s->batch, s->tokens, &c->rows) || c->rows > INT32_MAX / 2)
        return qn_fail(QN_ERR_INVALID, "%zu sequences of %zu tokens: expected at least 1 of 1, and at most %d tokens in all",
                       s->batch, s->tokens, INT32_MAX / 2);
    c->n_sequences = s->n_sequences ? s->n_sequences : s->batch;
    c->longest = s->max_tokens && s->max_tokens < s->tokens ? s->max_tokens : s->tokens;
    if (!s->n_sequences)
        return QN_OK;
    if (s->batch != 1)
        return qn_fail(QN_ERR_INVALID, "batch: %zu, expected 1 with cu_seqlens", s->batch);
    const qn_dtype dtype = s->cu_seqlens.dtype;
    if (dtype != QN_DTYPE_U32 && dtype != QN_DTYPE_I32 && dtype != QN_DTYPE_I64)
        return qn_fail(QN_ERR_INVALID, "cu_seqlens: data type %d, expected %d (u32), %d (i32) or %d (i64)", (int)dtype,
                       (int)QN_DTYPE_U32, (int)QN_DTYPE_I32, (int)QN_DTYPE_I64);
    if (s->n_sequences > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "n_sequences: %zu, at most %d are allowed", s->n_sequences, INT32_MAX);
    return qn_api_check_array("cu_seqlens", s->cu_seqlens, dtype, s->n_sequences + 1);
}

/* The shape alone; its other limits are those of the launches. */
static qn_status begin(gdn_call *c, const qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_dtype dtype)
{
    *c = (gdn_call){ .shape = shape, .dtype = dtype };
    if (!kernels || !shape)
        return qn_fail(QN_ERR_INVALID, "%s: NULL", kernels ? "shape" : "kernels");
    if (dtype != QN_DTYPE_F32 && dtype != QN_DTYPE_BF16)
        return qn_fail(QN_ERR_UNSUPPORTED, "delta rule on the GPU with data type %d, expected %d (f32) or %d (bf16)",
                       (int)dtype, (int)QN_DTYPE_F32, (int)QN_DTYPE_BF16);
    if (!isfinite(shape->scale))
        return qn_fail(QN_ERR_INVALID, "scale: %g, expected a finite value", (double)shape->scale);
    if (shape->mapping != QN_GDN_GROUPED && shape->mapping != QN_GDN_TILED)
        return qn_fail(QN_ERR_INVALID, "mapping: %d, expected %d or %d", (int)shape->mapping, (int)QN_GDN_GROUPED,
                       (int)QN_GDN_TILED);
    if (shape->k_heads > UINT16_MAX || shape->v_heads > UINT16_MAX || shape->head_k > UINT16_MAX || shape->head_v > UINT16_MAX)
        return qn_fail(QN_ERR_INVALID, "%zu and %zu heads of %zu and %zu: at most %d are allowed", shape->k_heads,
                       shape->v_heads, shape->head_k, shape->head_v, UINT16_MAX);
    QN_TRY(check_lengths(c));
    c->args = (qn_gdn_chunk_args){ .cu_seqlens = shape->n_sequences ? qn_api_address(shape->cu_seqlens) : 0,
                                   .wide_seqlens = shape->n_sequences && shape->cu_seqlens.dtype == QN_DTYPE_I64,
                                   .tokens = (uint32_t)shape->tokens,
                                   .sequences = (uint32_t)c->n_sequences,
                                   .k_heads = (uint32_t)shape->k_heads,
                                   .v_heads = (uint32_t)shape->v_heads,
                                   .head_v = (uint32_t)shape->head_v,
                                   .tiled = shape->mapping == QN_GDN_TILED,
                                   .normalize = shape->normalize,
                                   .scale = shape->scale };
    if (is_chunked(c) && (shape->head_k != QN_GDN_HEAD_K || shape->head_v == 0 || shape->head_v % QN_GDN_SLICE))
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "delta rule in bf16 with keys of %zu and values of %zu: expected %d, and a multiple of %d",
                       shape->head_k, shape->head_v, QN_GDN_HEAD_K, QN_GDN_SLICE);
    return qn_gdn_gpu_check_shape(&c->args, shape->head_k, is_chunked(c));
}

static qn_status check_tokens(gdn_call *c, qn_cuda_view q, qn_cuda_view k, qn_cuda_view v, qn_cuda_view g, qn_cuda_view beta,
                              qn_cuda_view o)
{
    const qn_cuda_gdn_shape *s = c->shape;
    qn_gdn_chunk_args *a = &c->args;
    uint32_t beta_stride;
    QN_TRY(qn_api_check_rows("q", q, c->dtype, c->rows, s->k_heads * s->head_k, QN_API_ALIGNMENT, &a->q_stride));
    QN_TRY(qn_api_check_rows("k", k, c->dtype, c->rows, s->k_heads * s->head_k, QN_API_ALIGNMENT, &a->k_stride));
    QN_TRY(qn_api_check_rows("v", v, c->dtype, c->rows, s->v_heads * s->head_v, QN_API_ALIGNMENT, &a->v_stride));
    QN_TRY(qn_api_check_rows("o", o, c->dtype, c->rows, s->v_heads * s->head_v, QN_API_ALIGNMENT, &a->o_stride));
    QN_TRY(qn_api_check_rows("g", g, QN_DTYPE_F32, c->rows, s->v_heads, sizeof(float), &a->gate_stride));
    QN_TRY(qn_api_check_rows("beta", beta, QN_DTYPE_F32, c->rows, s->v_heads, sizeof(float), &beta_stride));
    if (beta_stride != a->gate_stride)
        return qn_fail(QN_ERR_INVALID, "beta: rows are %u elements apart, expected %u as those of g", beta_stride,
                       a->gate_stride);
    a->q = qn_api_address(q);
    a->k = qn_api_address(k);
    a->v = qn_api_address(v);
    a->o = qn_api_address(o);
    a->g = qn_api_address(g);
    a->beta = qn_api_address(beta);
    return QN_OK;
}

static qn_status check_indices(gdn_call *c)
{
    const qn_cuda_view indices = c->shape->state_indices;
    if (!qn_api_given(indices))
        return QN_OK;
    QN_TRY(qn_api_check_array("state_indices", indices, QN_DTYPE_I32, c->n_sequences));
    c->args.state_indices = qn_api_address(indices);
    return QN_OK;
}

/* With indices one state is enough: only the device can see which are used. */
static qn_status check_state(gdn_call *c, const char *name, qn_cuda_view state, uint64_t *address)
{
    const qn_cuda_gdn_shape *s = c->shape;
    size_t n;
    if (__builtin_mul_overflow(c->args.state_indices ? 1 : c->n_sequences, s->v_heads * s->head_v * s->head_k, &n))
        return qn_fail(QN_ERR_INVALID, "%s: the states of %zu sequences are too many", name, c->n_sequences);
    const qn_dtype dtype = state.dtype == QN_DTYPE_BF16 ? QN_DTYPE_BF16 : QN_DTYPE_F32;
    QN_TRY(qn_api_check_array(name, state, dtype, n));
    c->args.bf16_states = dtype == QN_DTYPE_BF16;
    *address = qn_api_address(state);
    return QN_OK;
}

static void divide(gdn_call *c, const qn_cuda_kernels *kernels)
{
    const qn_cuda_info *info = qn_api_info(kernels);
    const qn_gdn_gpu gpu = { .max_shared_bytes = info->max_shared_bytes, .n_sms = info->n_sms };
    if (is_chunked(c))
        c->division = qn_gdn_gpu_divide(&c->args, c->longest, &gpu);
}

static size_t workspace_bytes(const gdn_call *c)
{
    if (!is_chunked(c))
        return 0;
    return qn_gdn_gpu_workspace_bytes(c->rows, c->n_sequences, c->shape->v_heads, c->shape->head_v, &c->division);
}

static qn_status chunk_launches(gdn_call *c, const qn_cuda_kernels *kernels, uint64_t workspace, qn_gdn_chunk_launches *out)
{
    if (is_chunked(c))
        return qn_gdn_gpu_chunk(&c->args, &c->division, qn_api_info(kernels)->max_shared_bytes, workspace, out);
    out->n = 1;
    return qn_gdn_gpu_recurrent(&c->args, c->shape->head_k, false, &out->launches[0]);
}

qn_status qn_cuda_gdn_chunk_workspace(const qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_dtype dtype,
                                      size_t *bytes)
{
    gdn_call c;
    if (!bytes)
        return qn_fail(QN_ERR_INVALID, "bytes: NULL");
    *bytes = 0;
    QN_TRY(begin(&c, kernels, shape, dtype));
    divide(&c, kernels);
    *bytes = workspace_bytes(&c);
    return QN_OK;
}

qn_status qn_cuda_gdn_chunk(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view q, qn_cuda_view k,
                            qn_cuda_view v, qn_cuda_view g, qn_cuda_view beta, qn_cuda_view initial, qn_cuda_view final,
                            qn_cuda_view o, void *workspace, size_t bytes, qn_stream stream)
{
    gdn_call c;
    qn_gdn_chunk_launches chunk;
    QN_TRY(begin(&c, kernels, shape, q.dtype));
    divide(&c, kernels);
    QN_TRY(check_tokens(&c, q, k, v, g, beta, o));
    QN_TRY(check_indices(&c));
    if (qn_api_given(initial))
        QN_TRY(check_state(&c, "initial", initial, &c.args.initial));
    if (qn_api_given(final))
        QN_TRY(check_state(&c, "final", final, &c.args.final));
    if (qn_api_given(initial) && qn_api_given(final) && initial.dtype != final.dtype)
        return qn_fail(QN_ERR_INVALID, "final: data type %d, expected %d as initial", (int) final.dtype, (int)initial.dtype);
    QN_TRY(qn_api_check_workspace(workspace_bytes(&c), workspace, bytes));
    QN_TRY(chunk_launches(&c, kernels, (uint64_t)(uintptr_t)workspace, &chunk));
    return qn_api_run(kernels, stream, chunk.launches, chunk.n, &c.args);
}

qn_status qn_cuda_gdn_step(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view q, qn_cuda_view k,
                           qn_cuda_view v, qn_cuda_view g, qn_cuda_view beta, qn_cuda_view state, qn_cuda_view o,
                           qn_stream stream)
{
    gdn_call c;
    qn_launch launch;
    QN_TRY(begin(&c, kernels, shape, q.dtype));
    QN_TRY(check_tokens(&c, q, k, v, g, beta, o));
    QN_TRY(check_indices(&c));
    QN_TRY(check_state(&c, "state", state, &c.args.initial));
    c.args.final = c.args.initial;
    QN_TRY(qn_gdn_gpu_recurrent(&c.args, shape->head_k, c.dtype == QN_DTYPE_BF16, &launch));
    return qn_api_run(kernels, stream, &launch, 1, &c.args);
}

qn_status qn_cuda_gdn_prepare(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_dtype dtype)
{
    enum { ALIGNED = 256 }; /* an address that passes the checks of the launches */
    gdn_call c;
    qn_gdn_chunk_launches chunk;
    QN_TRY(begin(&c, kernels, shape, dtype));
    divide(&c, kernels);
    c.args.q_stride = c.args.k_stride = (uint32_t)(shape->k_heads * shape->head_k);
    c.args.v_stride = c.args.o_stride = (uint32_t)(shape->v_heads * shape->head_v);
    c.args.gate_stride = (uint32_t)shape->v_heads;
    QN_TRY(chunk_launches(&c, kernels, ALIGNED, &chunk));
    QN_TRY(qn_api_load(kernels, chunk.launches, chunk.n));
    QN_TRY(qn_gdn_gpu_recurrent(&c.args, shape->head_k, dtype == QN_DTYPE_BF16, &chunk.launches[0]));
    return qn_api_load(kernels, chunk.launches, 1);
}
