/* The stages of Gated DeltaNet of quern/cuda.h: checks of the arguments, then the launches of
 * cuda/kernels/deltanet/stages.h. */
#include "cuda/api/deltanet.h"
#include "cuda/kernels/deltanet/stages.h"

enum { CHUNK = QN_GDN_CHUNK };

typedef struct stage_call {
    qn_api_gdn gdn;
    qn_gdn_stage_args args;
    uint32_t max_shared_bytes;
} stage_call;

/* Begins a call: checks the shape and fills the arguments that all stages share. dtype: that of D. */
static qn_status begin(stage_call *c, const qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_dtype dtype)
{
    *c = (stage_call){ 0 };
    QN_TRY(qn_api_gdn_begin(&c->gdn, kernels, shape, dtype));
    c->args.rule = c->gdn.args;
    c->max_shared_bytes = qn_api_info(kernels)->max_shared_bytes;
    return QN_OK;
}

static qn_status run(qn_cuda_kernels *kernels, const stage_call *c, qn_status status, const qn_launch *launch,
                     qn_stream stream)
{
    QN_TRY(status);
    return qn_api_run(kernels, stream, launch, 1, &c->args);
}

/* Checks a view of tokens whose rows have `row` elements of D. */
static qn_status check_elements(const stage_call *c, const char *name, qn_cuda_view view, size_t row, uint64_t *address,
                                uint32_t *stride)
{
    *address = qn_api_address(view);
    return qn_api_check_rows(name, view, c->gdn.dtype, c->gdn.rows, row, QN_API_ALIGNMENT, stride);
}

/* Checks a view of the rows of a chunk's matrix, for each value head. */
static qn_status check_matrix(const stage_call *c, const char *name, qn_cuda_view view, uint64_t *address,
                              uint32_t *stride)
{
    *address = qn_api_address(view);
    QN_TRY(qn_api_check_rows(name, view, QN_DTYPE_F32, c->gdn.rows, c->gdn.shape->v_heads * CHUNK, QN_API_ALIGNMENT,
                             stride));
    if (*stride % 4)
        return qn_fail(QN_ERR_INVALID, "%s: rows are %u elements apart, expected a multiple of 4", name, *stride);
    return QN_OK;
}

static qn_status check_beta(stage_call *c, qn_cuda_view beta)
{
    c->args.rule.beta = qn_api_address(beta);
    c->args.rule.beta_dtype = beta.dtype;
    return qn_api_gdn_check_gates(&c->gdn, "beta", beta, &c->args.rule.beta_stride);
}

static qn_status check_gc(stage_call *c, qn_cuda_view gc)
{
    c->args.gc = qn_api_address(gc);
    return qn_api_check_rows("gc", gc, QN_DTYPE_F32, c->gdn.rows, c->gdn.shape->v_heads, sizeof(float),
                             &c->args.gc_stride);
}

static qn_status check_keys(stage_call *c, const char *name, qn_cuda_view view, uint64_t *address, uint32_t *stride)
{
    return check_elements(c, name, view, c->gdn.shape->k_heads * c->gdn.shape->head_k, address, stride);
}

static qn_status check_values(stage_call *c, const char *name, qn_cuda_view view, uint64_t *address, uint32_t *stride)
{
    return check_elements(c, name, view, c->gdn.shape->v_heads * c->gdn.shape->head_v, address, stride);
}

/* Checks the view of chunk states. With cu_seqlens only the device knows the number of chunks: the check requires only
 * one. */
static qn_status check_chunk_states(stage_call *c, qn_cuda_view h)
{
    const qn_cuda_gdn_shape *s = c->gdn.shape;
    const size_t chunks = s->n_sequences ? 1 : s->batch * ((s->tokens + CHUNK - 1) / CHUNK);
    size_t n;
    if (__builtin_mul_overflow(chunks, s->v_heads * s->head_v * s->head_k, &n))
        return qn_fail(QN_ERR_INVALID, "h: the states of %zu chunks are too many", chunks);
    c->args.h = qn_api_address(h);
    return qn_api_check_array("h", h, c->gdn.dtype, n);
}

qn_status qn_cuda_gdn_cumsum(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view g, qn_cuda_view gc,
                             qn_stream stream)
{
    stage_call c;
    qn_launch launch;
    QN_TRY(begin(&c, kernels, shape, QN_DTYPE_BF16));
    c.args.rule.g = qn_api_address(g);
    c.args.rule.g_dtype = g.dtype;
    QN_TRY(qn_api_gdn_check_gates(&c.gdn, "g", g, &c.args.rule.g_stride));
    QN_TRY(check_gc(&c, gc));
    QN_TRY(qn_api_check_in_place("gc", gc, c.args.gc_stride, "g", g, c.args.rule.g_stride));
    return run(kernels, &c, qn_gdn_gpu_cumsum(&c.args, &launch), &launch, stream);
}

qn_status qn_cuda_gdn_kkt(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view k, qn_cuda_view beta,
                          qn_cuda_view gc, qn_cuda_view a, qn_stream stream)
{
    stage_call c;
    qn_launch launch;
    QN_TRY(begin(&c, kernels, shape, k.dtype));
    QN_TRY(check_keys(&c, "k", k, &c.args.rule.k, &c.args.rule.k_stride));
    QN_TRY(check_beta(&c, beta));
    QN_TRY(check_gc(&c, gc));
    QN_TRY(check_matrix(&c, "a", a, &c.args.a, &c.args.a_stride));
    return run(kernels, &c, qn_gdn_gpu_kkt(&c.args, &launch), &launch, stream);
}

qn_status qn_cuda_gdn_tril_inverse(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view a,
                                   qn_cuda_view inverse, qn_stream stream)
{
    stage_call c;
    qn_launch launch;
    QN_TRY(begin(&c, kernels, shape, QN_DTYPE_BF16));
    QN_TRY(check_matrix(&c, "a", a, &c.args.a, &c.args.a_stride));
    QN_TRY(check_matrix(&c, "inverse", inverse, &c.args.inverse, &c.args.inverse_stride));
    QN_TRY(qn_api_check_in_place("inverse", inverse, c.args.inverse_stride, "a", a, c.args.a_stride));
    return run(kernels, &c, qn_gdn_gpu_tril_inverse(&c.args, &launch), &launch, stream);
}

qn_status qn_cuda_gdn_recompute_w_u(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view k,
                                    qn_cuda_view v, qn_cuda_view beta, qn_cuda_view gc, qn_cuda_view inverse,
                                    qn_cuda_view w, qn_cuda_view u, qn_stream stream)
{
    stage_call c;
    qn_launch launch;
    QN_TRY(begin(&c, kernels, shape, k.dtype));
    QN_TRY(check_keys(&c, "k", k, &c.args.rule.k, &c.args.rule.k_stride));
    QN_TRY(check_values(&c, "v", v, &c.args.rule.v, &c.args.rule.v_stride));
    QN_TRY(check_beta(&c, beta));
    QN_TRY(check_gc(&c, gc));
    QN_TRY(check_matrix(&c, "inverse", inverse, &c.args.inverse, &c.args.inverse_stride));
    QN_TRY(check_elements(&c, "w", w, shape->v_heads * shape->head_k, &c.args.w, &c.args.w_stride));
    QN_TRY(check_values(&c, "u", u, &c.args.u, &c.args.u_stride));
    return run(kernels, &c, qn_gdn_gpu_recompute_w_u(&c.args, c.max_shared_bytes, &launch), &launch, stream);
}

qn_status qn_cuda_gdn_state_pass(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view k,
                                 qn_cuda_view w, qn_cuda_view u, qn_cuda_view gc, qn_cuda_view initial, qn_cuda_view h,
                                 qn_cuda_view v_new, qn_cuda_view final, qn_stream stream)
{
    stage_call c;
    qn_launch launch;
    QN_TRY(begin(&c, kernels, shape, k.dtype));
    QN_TRY(qn_api_gdn_check_states(&c.gdn, initial, final));
    c.args.rule = c.gdn.args;
    QN_TRY(check_keys(&c, "k", k, &c.args.rule.k, &c.args.rule.k_stride));
    QN_TRY(check_elements(&c, "w", w, shape->v_heads * shape->head_k, &c.args.w, &c.args.w_stride));
    QN_TRY(check_values(&c, "u", u, &c.args.u, &c.args.u_stride));
    QN_TRY(check_gc(&c, gc));
    QN_TRY(check_chunk_states(&c, h));
    QN_TRY(check_values(&c, "v_new", v_new, &c.args.v_new, &c.args.v_new_stride));
    return run(kernels, &c, qn_gdn_gpu_state_pass(&c.args, c.max_shared_bytes, &launch), &launch, stream);
}

qn_status qn_cuda_gdn_chunk_output(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_cuda_view q,
                                   qn_cuda_view k, qn_cuda_view v_new, qn_cuda_view h, qn_cuda_view gc, qn_cuda_view o,
                                   qn_stream stream)
{
    stage_call c;
    qn_launch launch;
    QN_TRY(begin(&c, kernels, shape, q.dtype));
    QN_TRY(check_keys(&c, "q", q, &c.args.rule.q, &c.args.rule.q_stride));
    QN_TRY(check_keys(&c, "k", k, &c.args.rule.k, &c.args.rule.k_stride));
    QN_TRY(check_values(&c, "v_new", v_new, &c.args.v_new, &c.args.v_new_stride));
    QN_TRY(check_chunk_states(&c, h));
    QN_TRY(check_gc(&c, gc));
    QN_TRY(check_values(&c, "o", o, &c.args.rule.o, &c.args.rule.o_stride));
    return run(kernels, &c, qn_gdn_gpu_chunk_output(&c.args, c.max_shared_bytes, &launch), &launch, stream);
}

/* Adds a launch, unless the device has too little shared memory for the stage. */
static qn_status add(qn_status status, size_t *n)
{
    if (status == QN_ERR_UNSUPPORTED)
        return QN_OK;
    *n += status == QN_OK;
    return status;
}

qn_status qn_cuda_gdn_stages_prepare(qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape, qn_dtype dtype)
{
    stage_call c;
    qn_launch launches[6];
    size_t n = 3;
    QN_TRY(begin(&c, kernels, shape, dtype));
    QN_TRY(qn_gdn_gpu_cumsum(&c.args, &launches[0]));
    QN_TRY(qn_gdn_gpu_tril_inverse(&c.args, &launches[1]));
    QN_TRY(qn_gdn_gpu_kkt(&c.args, &launches[2]));
    QN_TRY(add(qn_gdn_gpu_recompute_w_u(&c.args, c.max_shared_bytes, &launches[n]), &n));
    QN_TRY(add(qn_gdn_gpu_state_pass(&c.args, c.max_shared_bytes, &launches[n]), &n));
    QN_TRY(add(qn_gdn_gpu_chunk_output(&c.args, c.max_shared_bytes, &launches[n]), &n));
    return qn_api_load(kernels, launches, n);
}
