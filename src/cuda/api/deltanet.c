/* Gated DeltaNet of quern/cuda.h: checks of the arguments, then the launches of cuda/kernels/deltanet/deltanet.h. */
#include "cuda/api/deltanet.h"

#include <math.h>

/* Whether the call uses the chunk kernels: 16-bit types go to the tensor cores, f32 to the recurrence. */
static bool is_chunked(const qn_api_gdn *c)
{
    return c->dtype != QN_DTYPE_F32;
}

static bool is_element_type(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 || dtype == QN_DTYPE_F16 || dtype == QN_DTYPE_BF16;
}

static qn_status check_lengths(qn_api_gdn *c)
{
    const qn_cuda_gdn_shape *s = c->shape;
    if (s->batch == 0 || s->tokens == 0 || __builtin_mul_overflow(s->batch, s->tokens, &c->rows) ||
        c->rows > INT32_MAX / 2)
        return qn_fail(QN_ERR_INVALID,
                       "%zu sequences of %zu tokens: expected at least 1 of 1, and at most %d tokens in all", s->batch,
                       s->tokens, INT32_MAX / 2);
    c->n_sequences = s->n_sequences ? s->n_sequences : s->batch;
    c->longest = s->max_tokens && s->max_tokens < s->tokens ? s->max_tokens : s->tokens;
    if (!s->n_sequences)
        return QN_OK;
    return qn_api_check_seqlens(s->cu_seqlens, s->n_sequences, s->batch);
}

static qn_status check_gates(qn_api_gdn *c)
{
    const qn_cuda_gdn_shape *s = c->shape;
    uint32_t unused;
    if (qn_api_given(s->gate_bias) && !qn_api_given(s->gate_factor))
        return qn_fail(QN_ERR_INVALID, "gate_bias is given, expected gate_factor too");
    if (qn_api_given(s->gate_factor)) {
        QN_TRY(qn_api_check_rows("gate_factor", s->gate_factor, QN_DTYPE_F32, 1, s->v_heads, sizeof(float), &unused));
        c->args.gate_factor = qn_api_address(s->gate_factor);
    }
    if (qn_api_given(s->gate_bias)) {
        QN_TRY(qn_api_check_rows("gate_bias", s->gate_bias, QN_DTYPE_F32, 1, s->v_heads, sizeof(float), &unused));
        c->args.gate_bias = qn_api_address(s->gate_bias);
    }
    return QN_OK;
}

/* Checks the shape only; the functions that fill launches check the other limits. */
qn_status qn_api_gdn_begin(qn_api_gdn *c, const qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape,
                           qn_dtype dtype)
{
    *c = (qn_api_gdn){ .shape = shape, .dtype = dtype };
    if (!kernels || !shape)
        return qn_fail(QN_ERR_INVALID, "%s: NULL", kernels ? "shape" : "kernels");
    if (!is_element_type(dtype))
        return qn_fail(QN_ERR_INVALID, "delta rule with data type %d, expected %d (f32), %d (f16) or %d (bf16)",
                       (int)dtype, (int)QN_DTYPE_F32, (int)QN_DTYPE_F16, (int)QN_DTYPE_BF16);
    if (!isfinite(shape->scale))
        return qn_fail(QN_ERR_INVALID, "scale: %g, expected a finite value", (double)shape->scale);
    if (shape->mapping != QN_GDN_GROUPED && shape->mapping != QN_GDN_TILED)
        return qn_fail(QN_ERR_INVALID, "mapping: %d, expected %d or %d", (int)shape->mapping, (int)QN_GDN_GROUPED,
                       (int)QN_GDN_TILED);
    if (shape->k_heads > UINT16_MAX || shape->v_heads > UINT16_MAX || shape->head_k > UINT16_MAX ||
        shape->head_v > UINT16_MAX)
        return qn_fail(QN_ERR_INVALID, "%zu and %zu heads of %zu and %zu: at most %d are allowed", shape->k_heads,
                       shape->v_heads, shape->head_k, shape->head_v, UINT16_MAX);
    QN_TRY(check_lengths(c));
    c->args = (qn_gdn_chunk_args){ .cu_seqlens = shape->n_sequences ? qn_api_address(shape->cu_seqlens) : 0,
                                   .wide_seqlens = shape->n_sequences && shape->cu_seqlens.dtype == QN_DTYPE_I64,
                                   .tokens = (uint32_t)shape->tokens,
                                   .sequences = (uint32_t)c->n_sequences,
                                   .k_heads = (uint32_t)shape->k_heads,
                                   .v_heads = (uint32_t)shape->v_heads,
                                   .head_k = (uint32_t)shape->head_k,
                                   .head_v = (uint32_t)shape->head_v,
                                   .dtype = dtype,
                                   .transposed_states = shape->transposed_states,
                                   .sigmoid_beta = shape->sigmoid_beta,
                                   .tiled = shape->mapping == QN_GDN_TILED,
                                   .normalize = shape->normalize,
                                   .scale = shape->scale };
    QN_TRY(qn_gdn_gpu_check_shape(&c->args));
    QN_TRY(qn_api_check_indices(shape->state_indices, c->n_sequences, &c->args.state_indices));
    return check_gates(c);
}

qn_status qn_api_gdn_check_gates(const qn_api_gdn *c, const char *name, qn_cuda_view view, uint32_t *stride)
{
    QN_TRY(qn_api_check_float_type(name, view));
    const size_t alignment = view.dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    return qn_api_check_rows(name, view, view.dtype, c->rows, c->shape->v_heads, alignment, stride);
}

static qn_status check_tokens(qn_api_gdn *c, qn_cuda_view q, qn_cuda_view k, qn_cuda_view v, qn_cuda_view g,
                              qn_cuda_view beta, qn_cuda_view o)
{
    const qn_cuda_gdn_shape *s = c->shape;
    qn_gdn_chunk_args *a = &c->args;
    QN_TRY(qn_api_check_rows("q", q, c->dtype, c->rows, s->k_heads * s->head_k, QN_API_ALIGNMENT, &a->q_stride));
    QN_TRY(qn_api_check_rows("k", k, c->dtype, c->rows, s->k_heads * s->head_k, QN_API_ALIGNMENT, &a->k_stride));
    QN_TRY(qn_api_check_rows("v", v, c->dtype, c->rows, s->v_heads * s->head_v, QN_API_ALIGNMENT, &a->v_stride));
    QN_TRY(qn_api_check_rows("o", o, c->dtype, c->rows, s->v_heads * s->head_v, QN_API_ALIGNMENT, &a->o_stride));
    QN_TRY(qn_api_gdn_check_gates(c, "g", g, &a->g_stride));
    QN_TRY(qn_api_gdn_check_gates(c, "beta", beta, &a->beta_stride));
    a->q = qn_api_address(q);
    a->k = qn_api_address(k);
    a->v = qn_api_address(v);
    a->o = qn_api_address(o);
    a->g = qn_api_address(g);
    a->beta = qn_api_address(beta);
    a->g_dtype = g.dtype;
    a->beta_dtype = beta.dtype;
    return QN_OK;
}

/* Checks a view of states. With indices the check requires only one state: only the device knows the indices. */
static qn_status check_state(qn_api_gdn *c, const char *name, qn_cuda_view state, uint64_t *address)
{
    const qn_cuda_gdn_shape *s = c->shape;
    size_t n;
    if (__builtin_mul_overflow(c->args.state_indices ? 1 : c->n_sequences, s->v_heads * s->head_v * s->head_k, &n))
        return qn_fail(QN_ERR_INVALID, "%s: the states of %zu sequences are too many", name, c->n_sequences);
    const qn_dtype dtype = state.dtype == QN_DTYPE_BF16 ? QN_DTYPE_BF16 : QN_DTYPE_F32;
    QN_TRY(qn_api_check_array(name, state, dtype, n));
    c->args.state_type = dtype == QN_DTYPE_BF16 ? QN_GDN_STATE_BF16 : QN_GDN_STATE_F32;
    *address = qn_api_address(state);
    return QN_OK;
}

qn_status qn_api_gdn_check_states(qn_api_gdn *c, qn_cuda_view initial, qn_cuda_view final)
{
    if (qn_api_given(initial))
        QN_TRY(check_state(c, "initial", initial, &c->args.initial));
    if (qn_api_given(final))
        QN_TRY(check_state(c, "final", final, &c->args.final));
    if (qn_api_given(initial) && qn_api_given(final) && initial.dtype != final.dtype)
        return qn_fail(QN_ERR_INVALID, "final: data type %d, expected %d as initial", (int) final.dtype,
                       (int)initial.dtype);
    return QN_OK;
}

static void divide(qn_api_gdn *c, const qn_cuda_kernels *kernels)
{
    const qn_cuda_info *info = qn_api_info(kernels);
    const qn_gdn_gpu gpu = { .max_shared_bytes = info->max_shared_bytes, .n_sms = info->n_sms };
    if (is_chunked(c))
        c->division = qn_gdn_gpu_divide(&c->args, c->longest, &gpu);
}

static size_t workspace_bytes(const qn_api_gdn *c)
{
    if (!is_chunked(c))
        return 0;
    return qn_gdn_gpu_workspace_bytes(&c->args, &c->division);
}

static qn_status chunk_launches(qn_api_gdn *c, const qn_cuda_kernels *kernels, uint64_t workspace,
                                qn_gdn_chunk_launches *out)
{
    if (is_chunked(c))
        return qn_gdn_gpu_chunk(&c->args, &c->division, qn_api_info(kernels)->max_shared_bytes, workspace, out);
    out->n = 1;
    return qn_gdn_gpu_recurrent(&c->args, &out->launches[0]);
}

qn_status qn_cuda_gdn_chunk_workspace(const qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_dtype dtype,
                                      size_t *bytes)
{
    qn_api_gdn c;
    if (!bytes)
        return qn_fail(QN_ERR_INVALID, "bytes: NULL");
    *bytes = 0;
    QN_TRY(qn_api_gdn_begin(&c, kernels, shape, dtype));
    divide(&c, kernels);
    *bytes = workspace_bytes(&c);
    return QN_OK;
}

qn_status qn_cuda_gdn_chunk(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view q, qn_cuda_view k,
                            qn_cuda_view v, qn_cuda_view g, qn_cuda_view beta, qn_cuda_view initial, qn_cuda_view final,
                            qn_cuda_view o, void *workspace, size_t bytes, qn_stream stream)
{
    qn_api_gdn c;
    qn_gdn_chunk_launches chunk;
    QN_TRY(qn_api_gdn_begin(&c, kernels, shape, q.dtype));
    divide(&c, kernels);
    QN_TRY(check_tokens(&c, q, k, v, g, beta, o));
    QN_TRY(qn_api_gdn_check_states(&c, initial, final));
    QN_TRY(qn_api_check_workspace(workspace_bytes(&c), workspace, bytes));
    QN_TRY(chunk_launches(&c, kernels, (uint64_t)(uintptr_t)workspace, &chunk));
    return qn_api_run(kernels, stream, chunk.launches, chunk.n, &c.args);
}

qn_status qn_cuda_gdn_step(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view q, qn_cuda_view k,
                           qn_cuda_view v, qn_cuda_view g, qn_cuda_view beta, qn_cuda_view state, qn_cuda_view o,
                           qn_stream stream)
{
    qn_api_gdn c;
    qn_launch launch;
    QN_TRY(qn_api_gdn_begin(&c, kernels, shape, q.dtype));
    QN_TRY(check_tokens(&c, q, k, v, g, beta, o));
    QN_TRY(check_state(&c, "state", state, &c.args.initial));
    c.args.final = c.args.initial;
    QN_TRY(qn_gdn_gpu_recurrent(&c.args, &launch));
    return qn_api_run(kernels, stream, &launch, 1, &c.args);
}

qn_status qn_cuda_gdn_prepare(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_dtype dtype)
{
    enum { ALIGNED = 256 }; /* an address that passes the checks of the launches */
    qn_api_gdn c;
    qn_gdn_chunk_launches chunk;
    QN_TRY(qn_api_gdn_begin(&c, kernels, shape, dtype));
    divide(&c, kernels);
    c.args.q_stride = c.args.k_stride = (uint32_t)(shape->k_heads * shape->head_k);
    c.args.v_stride = c.args.o_stride = (uint32_t)(shape->v_heads * shape->head_v);
    c.args.g_stride = c.args.beta_stride = (uint32_t)shape->v_heads;
    QN_TRY(chunk_launches(&c, kernels, ALIGNED, &chunk));
    QN_TRY(qn_api_load(kernels, chunk.launches, chunk.n));
    QN_TRY(qn_gdn_gpu_recurrent(&c.args, &chunk.launches[0]));
    return qn_api_load(kernels, chunk.launches, 1);
}
