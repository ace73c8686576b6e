/* Matmuls of quern/cuda.h: checks of the arguments, then the launches of cuda/kernels/matmul/matmul.h. */
#include "cuda/api/api.h"

#include "base/memory.h"
#include "cuda/kernels/matmul/matmul.h"
#include "quant/quant.h"

enum {
    PASS_TOKENS = 32768, /* tokens of a pass: enough for all SMs, few enough for a small workspace. Below the limit of a
                            grid */
    TILES_ALIGNMENT = 128,
    ACTS_ALIGNMENT = 1024,
    PASS_LAUNCHES = 2
};

_Static_assert((int)QN_CUDA_MATMUL_MATRICES == (int)QN_MATMUL_OUTS, "matrices that share activations");
_Static_assert((int)QN_CUDA_MATMUL_X == QN_ACTS_OP_NONE && (int)QN_CUDA_MATMUL_RMS_NORM == QN_ACTS_OP_RMS_NORM &&
                   (int)QN_CUDA_MATMUL_SWIGLU == QN_ACTS_OP_SWIGLU,
               "operations are passed to the kernels");

typedef struct matmul_call {
    const qn_type_info *type;
    qn_matmul_gpu gpu;
    qn_tiled_matrix matrix; /* outs: the outputs of the first token */
    size_t packed_bytes;
    /* The activations of a pass. */
    const qn_cuda_matmul_acts *acts;
    size_t pass_tokens;
    qn_matmul_acts pass;
    size_t acts_bytes, scale_bytes;
    uint32_t stride; /* of x and up */
    size_t element, out_element;
} matmul_call;

static size_t element_bytes(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* ---- Weights ---- */

static qn_status begin(matmul_call *c, const qn_cuda_matmul_weights *weights)
{
    size_t row_bytes;
    *c = (matmul_call){ 0 };
    if (!weights)
        return qn_fail(QN_ERR_INVALID, "weights: NULL");
    c->type = qn_type_find_stored((uint32_t)weights->dtype);
    if (!c->type)
        return qn_fail(QN_ERR_INVALID, "weights: type %d is not a weight type", (int)weights->dtype);
    if (!weights->n_cols || !qn_row_bytes(c->type, weights->n_cols, &row_bytes))
        return qn_fail(QN_ERR_INVALID, "n_cols: %zu, expected a multiple of %zu for %s", weights->n_cols,
                       c->type->block_weights, c->type->name);
    if (!weights->n_matrices || weights->n_matrices > QN_CUDA_MATMUL_MATRICES)
        return qn_fail(QN_ERR_INVALID, "n_matrices: %zu, expected 1 to %d", weights->n_matrices,
                       (int)QN_CUDA_MATMUL_MATRICES);
    c->matrix = (qn_tiled_matrix){ .n_cols = weights->n_cols, .n_outs = weights->n_matrices };
    if (!qn_matmul_gpu_stored_layout(c->type, &c->matrix.tiles))
        return qn_fail(QN_ERR_UNSUPPORTED, "weights: type %s on the GPU", c->type->name);
    for (size_t i = 0; i < weights->n_matrices; i++) {
        if (!weights->n_rows[i] || weights->n_rows[i] > INT32_MAX)
            return qn_fail(QN_ERR_INVALID, "n_rows[%zu]: %zu, expected 1 to %d", i, weights->n_rows[i], INT32_MAX);
        c->matrix.outs[i].first_tile = (uint32_t)c->matrix.n_tiles;
        c->matrix.outs[i].n_rows = (uint32_t)weights->n_rows[i];
        c->matrix.n_tiles += qn_matmul_gpu_tile_count(weights->n_rows[i]);
    }
    return qn_matmul_gpu_bytes(&c->matrix.tiles, c->matrix.n_tiles, c->matrix.n_cols, &c->packed_bytes);
}

static qn_status check_packed(matmul_call *c, const qn_cuda_matmul_weights *weights)
{
    c->matrix.address = (uint64_t)(uintptr_t)weights->packed;
    if (weights->bytes < c->packed_bytes)
        return qn_fail(QN_ERR_INVALID, "packed: %zu bytes, expected at least %zu", weights->bytes, c->packed_bytes);
    if (!weights->packed || c->matrix.address % TILES_ALIGNMENT)
        return qn_fail(QN_ERR_INVALID, "packed: address %p, expected a multiple of %d", weights->packed,
                       (int)TILES_ALIGNMENT);
    return QN_OK;
}

qn_status qn_cuda_matmul_packed_bytes(const qn_cuda_matmul_weights *weights, size_t *bytes)
{
    matmul_call c;
    if (!bytes)
        return qn_fail(QN_ERR_INVALID, "bytes: NULL");
    *bytes = 0;
    QN_TRY(begin(&c, weights));
    *bytes = c.packed_bytes;
    return QN_OK;
}

/* Makes the launch that packs the rows at device address `rows` as a matrix of the call's packed weights. */
static qn_status pack_launch(const matmul_call *c, size_t matrix, uint64_t rows, qn_matmul_launch *out)
{
    size_t row_bytes;
    if (!qn_row_bytes(c->type, c->matrix.n_cols, &row_bytes))
        return qn_fail(QN_ERR_INVALID, "n_cols: %zu", c->matrix.n_cols); /* begin() has checked it */
    return qn_matmul_gpu_pack(&c->matrix, rows, row_bytes, c->matrix.outs[matrix].n_rows,
                              c->matrix.outs[matrix].first_tile, out);
}

qn_status qn_cuda_matmul_pack(qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights, size_t matrix,
                              qn_cuda_view rows, qn_stream stream)
{
    matmul_call c;
    qn_matmul_launch pack;
    size_t n;
    QN_TRY(begin(&c, weights));
    QN_TRY(check_packed(&c, weights));
    if (matrix >= weights->n_matrices)
        return qn_fail(QN_ERR_INVALID, "matrix: %zu, expected less than %zu", matrix, weights->n_matrices);
    if (!qn_mul_size(weights->n_rows[matrix], weights->n_cols, &n))
        return qn_fail(QN_ERR_INVALID, "rows: %zu x %zu elements do not fit in memory", weights->n_rows[matrix],
                       weights->n_cols);
    QN_TRY(qn_api_check_array("rows", rows, weights->dtype, n));
    QN_TRY(pack_launch(&c, matrix, qn_api_address(rows), &pack));
    return qn_api_run(kernels, stream, &pack.launch, 1, &pack.args);
}

/* ---- Activations ---- */

static qn_status check_tokens(matmul_call *c, const qn_cuda_kernels *kernels, const qn_cuda_matmul_acts *acts)
{
    if (!kernels || !acts)
        return qn_fail(QN_ERR_INVALID, "%s: NULL", kernels ? "acts" : "kernels");
    if (acts->n_tokens > INT32_MAX / 2)
        return qn_fail(QN_ERR_INVALID, "n_tokens: %zu, at most %d are allowed", acts->n_tokens, INT32_MAX / 2);
    const qn_cuda_info *info = qn_api_info(kernels);
    c->gpu = (qn_matmul_gpu){ .n_sms = info->n_sms,
                              .max_shared_bytes = info->max_shared_bytes,
                              .clusters = info->major >= 9,
                              .wgmma = info->major == 9 };
    c->acts = acts;
    c->pass_tokens = acts->n_tokens < PASS_TOKENS ? acts->n_tokens : PASS_TOKENS;
    if (!c->pass_tokens)
        return QN_OK;
    c->pass.layout = qn_matmul_gpu_acts_layout(&c->matrix.tiles, c->pass_tokens);
    c->pass.n_cols = c->matrix.n_cols;
    c->pass.capacity = c->pass.layout == QN_ACTS_HILO_N1 ? 1 : qn_round_up(c->pass_tokens, QN_GEMM_TILE_N);
    c->pass.rms_norm = acts->op == QN_CUDA_MATMUL_RMS_NORM;
    c->pass.eps = acts->eps;
    c->pass.prepares_slots = qn_matmul_gpu_few_blocks(&c->gpu);
    if (c->pass.layout == QN_ACTS_HILO)
        c->pass.planes = qn_matmul_gpu_planes(&c->gpu, &c->matrix.tiles, c->pass_tokens);
    c->scale_bytes = qn_matmul_gpu_scale_bytes(c->pass.layout, c->pass.n_cols, c->pass.capacity);
    return qn_matmul_gpu_acts_bytes(c->pass.layout, c->pass.n_cols, c->pass.capacity, &c->acts_bytes);
}

/* Returns the bytes of activations and their scales, padded: the workspace of the matmul follows. */
static size_t matmul_workspace_at(const matmul_call *c)
{
    return qn_round_up(c->acts_bytes + c->scale_bytes, ACTS_ALIGNMENT);
}

/* Computes the bytes of the workspace: padding for alignment, then activations, their scales, and the workspace of the
 * matmul. */
static qn_status workspace_bytes(const matmul_call *c, size_t *bytes)
{
    const size_t others =
        c->scale_bytes + (c->pass.layout == QN_ACTS_HILO ? ACTS_ALIGNMENT + qn_matmul_gpu_workspace_bytes(&c->gpu) : 0);
    *bytes = 0;
    if (!c->pass_tokens)
        return QN_OK;
    if (!qn_add_size(c->acts_bytes, others + ACTS_ALIGNMENT - QN_API_ALIGNMENT, bytes))
        return qn_fail(QN_ERR_INVALID, "activations of %zu tokens and %zu columns do not fit in memory", c->pass_tokens,
                       c->matrix.n_cols);
    return QN_OK;
}

qn_status qn_cuda_matmul_workspace(const qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights,
                                   const qn_cuda_matmul_acts *acts, size_t *bytes)
{
    matmul_call c;
    if (!bytes)
        return qn_fail(QN_ERR_INVALID, "bytes: NULL");
    *bytes = 0;
    QN_TRY(begin(&c, weights));
    QN_TRY(check_tokens(&c, kernels, acts));
    return workspace_bytes(&c, bytes);
}

static qn_status check_op(const qn_cuda_matmul_acts *acts)
{
    if (acts->op == QN_CUDA_MATMUL_X || acts->op == QN_CUDA_MATMUL_RMS_NORM || acts->op == QN_CUDA_MATMUL_SWIGLU)
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "op: %d, expected %d to %d", (int)acts->op, (int)QN_CUDA_MATMUL_X,
                   (int)QN_CUDA_MATMUL_SWIGLU);
}

static qn_status check_acts(matmul_call *c)
{
    const qn_cuda_matmul_acts *a = c->acts;
    uint32_t up_stride;
    QN_TRY(check_op(a));
    QN_TRY(qn_api_check_float_type("x", a->x));
    c->element = element_bytes(a->x.dtype);
    QN_TRY(qn_api_check_rows("x", a->x, a->x.dtype, a->n_tokens, c->matrix.n_cols, c->element, &c->stride));
    if (a->op == QN_CUDA_MATMUL_RMS_NORM) {
        QN_TRY(qn_api_check_array("weight", a->weight, QN_DTYPE_F32, c->matrix.n_cols));
        return qn_api_check_eps(a->eps);
    }
    if (a->op == QN_CUDA_MATMUL_X)
        return QN_OK;
    QN_TRY(qn_api_check_rows("up", a->up, a->x.dtype, a->n_tokens, c->matrix.n_cols, c->element, &up_stride));
    if (up_stride != c->stride)
        return qn_fail(QN_ERR_INVALID, "up: rows are %u elements apart, expected %u as those of x", up_stride,
                       c->stride);
    return QN_OK;
}

static qn_status check_outs(matmul_call *c, const qn_cuda_matmul_out *outs)
{
    static const char *const names[QN_CUDA_MATMUL_MATRICES] = { "outs[0]", "outs[1]", "outs[2]", "outs[3]" };
    if (!outs)
        return qn_fail(QN_ERR_INVALID, "outs: NULL");
    QN_TRY(qn_api_check_float_type(names[0], outs[0].y));
    c->out_element = element_bytes(outs[0].y.dtype);
    c->matrix.out_dtype = (uint32_t)outs[0].y.dtype;
    for (size_t i = 0; i < c->matrix.n_outs; i++) {
        qn_matmul_out *out = &c->matrix.outs[i];
        QN_TRY(qn_api_check_rows(names[i], outs[i].y, outs[0].y.dtype, c->acts->n_tokens, out->n_rows, c->out_element,
                                 &out->stride));
        out->data = qn_api_address(outs[i].y);
        out->accumulate = outs[i].accumulate;
    }
    return QN_OK;
}

/* ---- Passes ---- */

/* The launches of the tokens from `first` on. The second kernel reads packed weights before it waits for the first, so
 * the first one waits for all work in the stream, which may pack or copy the weights. */
static qn_status pass_launches(const matmul_call *c, size_t first, qn_matmul_launch out[PASS_LAUNCHES])
{
    const qn_cuda_matmul_acts *a = c->acts;
    const size_t left = a->n_tokens - first, n = left < c->pass_tokens ? left : c->pass_tokens;
    const uint64_t offset = (uint64_t)first * c->stride * c->element;
    qn_tiled_matrix matrix = c->matrix;
    qn_matmul_acts pass = c->pass;
    for (size_t i = 0; i < matrix.n_outs; i++)
        matrix.outs[i].data += (uint64_t)first * matrix.outs[i].stride * c->out_element;
    if (pass.layout == QN_ACTS_HILO_N1 && n != 1)
        return qn_fail(QN_ERR_INVALID, "a pass of %zu tokens, expected 1", n);
    QN_TRY(qn_matmul_gpu_quantize(&pass, (int)a->op, qn_api_address(a->x) + offset,
                                  a->op == QN_CUDA_MATMUL_SWIGLU ? qn_api_address(a->up) + offset : 0,
                                  a->op == QN_CUDA_MATMUL_RMS_NORM ? qn_api_address(a->weight) : 0, a->eps, c->stride,
                                  n, &out[0]));
    if (a->x.dtype != QN_DTYPE_F32)
        qn_matmul_gpu_quantize_16bit(&out[0], a->x.dtype == QN_DTYPE_BF16);
    out[0].launch.pdl = false;
    return qn_matmul_gpu_matmul(&c->gpu, &matrix, &pass, n, &out[1]);
}

/* The launches of the first and of the last pass: together they use the code of all passes. */
static qn_status all_launches(const matmul_call *c, qn_launch out[2 * PASS_LAUNCHES])
{
    const size_t ends[2] = { 0, (c->acts->n_tokens - 1) / c->pass_tokens * c->pass_tokens };
    qn_matmul_launch pass[PASS_LAUNCHES];
    for (size_t i = 0; i < 2; i++) {
        QN_TRY(pass_launches(c, ends[i], pass));
        for (size_t k = 0; k < PASS_LAUNCHES; k++)
            out[i * PASS_LAUNCHES + k] = pass[k].launch;
    }
    return QN_OK;
}

static void place(matmul_call *c, uint64_t workspace)
{
    c->pass.address = qn_round_up(workspace, ACTS_ALIGNMENT);
    c->pass.scale = c->scale_bytes ? c->pass.address + c->acts_bytes : 0;
    c->pass.workspace = c->pass.layout == QN_ACTS_HILO ? c->pass.address + matmul_workspace_at(c) : 0;
}

qn_status qn_cuda_matmul(qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights,
                         const qn_cuda_matmul_acts *acts, const qn_cuda_matmul_out *outs, void *workspace, size_t bytes,
                         qn_stream stream)
{
    matmul_call c;
    qn_matmul_launch pass[PASS_LAUNCHES];
    qn_launch launches[2 * PASS_LAUNCHES];
    size_t needed;
    QN_TRY(begin(&c, weights));
    QN_TRY(check_packed(&c, weights));
    QN_TRY(check_tokens(&c, kernels, acts));
    QN_TRY(check_acts(&c));
    QN_TRY(check_outs(&c, outs));
    QN_TRY(workspace_bytes(&c, &needed));
    QN_TRY(qn_api_check_workspace(needed, workspace, bytes));
    if (!acts->n_tokens)
        return QN_OK;
    place(&c, (uint64_t)(uintptr_t)workspace);
    QN_TRY(all_launches(&c, launches));
    QN_TRY(qn_api_make_ready(kernels, stream, launches, 2 * PASS_LAUNCHES));
    for (size_t first = 0; first < acts->n_tokens; first += c.pass_tokens) {
        QN_TRY(pass_launches(&c, first, pass));
        const qn_api_call calls[PASS_LAUNCHES] = { { pass[0].launch, &pass[0].args },
                                                   { pass[1].launch, &pass[1].args } };
        QN_TRY(qn_api_run_calls(kernels, stream, calls, PASS_LAUNCHES));
    }
    return QN_OK;
}

qn_status qn_cuda_matmul_prepare(qn_cuda_kernels *kernels, const qn_cuda_matmul_weights *weights,
                                 const qn_cuda_matmul_acts *acts)
{
    matmul_call c;
    qn_matmul_launch pack;
    qn_launch launches[2 * PASS_LAUNCHES];
    QN_TRY(begin(&c, weights));
    QN_TRY(check_tokens(&c, kernels, acts));
    QN_TRY(check_op(acts));
    QN_TRY(qn_api_check_float_type("x", acts->x));
    QN_TRY(pack_launch(&c, 0, 0, &pack));
    QN_TRY(qn_api_load(kernels, &pack.launch, 1));
    if (!acts->n_tokens)
        return QN_OK;
    place(&c, 0);
    QN_TRY(all_launches(&c, launches));
    return qn_api_load(kernels, launches, 2 * PASS_LAUNCHES);
}
