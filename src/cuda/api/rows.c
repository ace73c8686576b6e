/* Operations on rows of quern/cuda.h: norms, SwiGLU, argmax. */
#include "cuda/api/api.h"

#include "cuda/kernels/elementwise/elementwise.h"
#include "cuda/kernels/norm/norm.h"
#include "cuda/kernels/sample/argmax.h"

#include <stddef.h>

/* The rows of a call: their type is that of the first array. */
typedef struct rows {
    size_t n_rows, n, element;
    qn_dtype dtype;
    bool is_aligned; /* all rows of all arrays begin at multiples of QN_API_ALIGNMENT */
} rows;

static qn_status begin(rows *r, const qn_cuda_kernels *kernels, const char *name, qn_cuda_view first, size_t n_rows,
                       size_t n)
{
    *r = (rows){ .n_rows = n_rows, .n = n, .dtype = first.dtype, .is_aligned = true };
    r->element = first.dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    if (!kernels)
        return qn_fail(QN_ERR_INVALID, "kernels: NULL");
    if (n > INT32_MAX || n_rows > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "%zu rows of %zu: at most %d of %d are allowed", n_rows, n, INT32_MAX,
                       INT32_MAX);
    return qn_api_check_float_type(name, first);
}

static qn_status check(rows *r, const char *name, qn_cuda_view view, uint32_t *stride)
{
    QN_TRY(qn_api_check_rows(name, view, r->dtype, r->n ? r->n_rows : 0, r->n, r->element, stride));
    if (qn_api_address(view) % QN_API_ALIGNMENT || *stride * r->element % QN_API_ALIGNMENT)
        r->is_aligned = false;
    return QN_OK;
}

static bool is_empty(const rows *r)
{
    return !r->n || !r->n_rows;
}

/* ---- Norms ---- */

static qn_status norm(qn_cuda_kernels *kernels, qn_norm_op op, qn_cuda_view x, qn_cuda_view gate, qn_cuda_view weight,
                      size_t n_rows, size_t n, float eps, qn_cuda_view out, qn_stream stream)
{
    rows r;
    qn_launch launch;
    qn_norm_views_args a = { .op = op, .eps = eps };
    QN_TRY(begin(&r, kernels, "x", x, n_rows, n));
    QN_TRY(qn_api_check_eps(eps));
    QN_TRY(check(&r, "x", x, &a.x_stride));
    if (op == QN_NORM_GATED)
        QN_TRY(check(&r, "gate", gate, &a.gate_stride));
    if (op != QN_NORM_L2)
        QN_TRY(qn_api_check_array("weight", weight, QN_DTYPE_F32, n));
    QN_TRY(check(&r, "out", out, &a.y_stride));
    QN_TRY(qn_api_check_in_place("out", out, a.y_stride, "x", x, a.x_stride));
    QN_TRY(qn_api_check_in_place("out", out, a.y_stride, "gate", gate, a.gate_stride));
    if (is_empty(&r))
        return QN_OK;
    a.x = qn_api_address(x);
    a.gate = qn_api_address(gate);
    a.weight = qn_api_address(weight);
    a.y = qn_api_address(out);
    a.n_rows = (uint32_t)n_rows;
    a.n = (uint32_t)n;
    a.dtype = (uint32_t)r.dtype;
    a.is_aligned = r.is_aligned;
    QN_TRY(qn_norm_gpu_views(n, n_rows, &launch));
    return qn_api_run(kernels, stream, &launch, 1, &a);
}

qn_status qn_cuda_rms_norm(qn_cuda_kernels *kernels, qn_cuda_view x, qn_cuda_view weight, size_t n_rows, size_t n,
                           float eps, qn_cuda_view out, qn_stream stream)
{
    return norm(kernels, QN_NORM_RMS, x, (qn_cuda_view){ 0 }, weight, n_rows, n, eps, out, stream);
}

qn_status qn_cuda_l2_norm(qn_cuda_kernels *kernels, qn_cuda_view x, size_t n_rows, size_t n, float eps,
                          qn_cuda_view out, qn_stream stream)
{
    return norm(kernels, QN_NORM_L2, x, (qn_cuda_view){ 0 }, (qn_cuda_view){ 0 }, n_rows, n, eps, out, stream);
}

qn_status qn_cuda_gated_rms_norm(qn_cuda_kernels *kernels, qn_cuda_view x, qn_cuda_view gate, qn_cuda_view weight,
                                 size_t n_rows, size_t n, float eps, qn_cuda_view out, qn_stream stream)
{
    return norm(kernels, QN_NORM_GATED, x, gate, weight, n_rows, n, eps, out, stream);
}

/* ---- SwiGLU ---- */

qn_status qn_cuda_swiglu(qn_cuda_kernels *kernels, qn_cuda_view gate, qn_cuda_view up, size_t n_rows, size_t n,
                         qn_cuda_view out, qn_stream stream)
{
    rows r;
    qn_launch launch;
    qn_elementwise_swiglu_views_args a = { 0 };
    QN_TRY(begin(&r, kernels, "gate", gate, n_rows, n));
    QN_TRY(check(&r, "gate", gate, &a.gate_stride));
    QN_TRY(check(&r, "up", up, &a.up_stride));
    QN_TRY(check(&r, "out", out, &a.y_stride));
    QN_TRY(qn_api_check_in_place("out", out, a.y_stride, "gate", gate, a.gate_stride));
    QN_TRY(qn_api_check_in_place("out", out, a.y_stride, "up", up, a.up_stride));
    if (is_empty(&r))
        return QN_OK;
    a.gate = qn_api_address(gate);
    a.up = qn_api_address(up);
    a.y = qn_api_address(out);
    a.n = (uint32_t)n;
    a.dtype = (uint32_t)r.dtype;
    a.is_aligned = r.is_aligned;
    QN_TRY(qn_elementwise_gpu_swiglu_views(n, n_rows, &launch));
    return qn_api_run(kernels, stream, &launch, 1, &a);
}

/* ---- Argmax ---- */

qn_status qn_cuda_argmax(qn_cuda_kernels *kernels, qn_cuda_view logits, size_t n_rows, size_t n, qn_cuda_view index,
                         qn_stream stream)
{
    rows r;
    qn_launch launch;
    qn_argmax_rows_args a = { 0 };
    QN_TRY(begin(&r, kernels, "logits", logits, n_rows, n));
    if (n_rows && !n)
        return qn_fail(QN_ERR_INVALID, "logits: 0 elements in a row, expected at least 1");
    QN_TRY(check(&r, "logits", logits, &a.stride));
    if (index.dtype != QN_DTYPE_I32 && index.dtype != QN_DTYPE_I64)
        return qn_fail(QN_ERR_INVALID, "index: data type %d, expected %d (i32) or %d (i64)", (int)index.dtype,
                       (int)QN_DTYPE_I32, (int)QN_DTYPE_I64);
    QN_TRY(qn_api_check_array("index", index, index.dtype, n_rows));
    if (is_empty(&r))
        return QN_OK;
    a.x = qn_api_address(logits);
    a.index = qn_api_address(index);
    a.n = (uint32_t)n;
    a.dtype = (uint32_t)r.dtype;
    a.is_aligned = r.is_aligned;
    a.is_wide = index.dtype == QN_DTYPE_I64;
    QN_TRY(qn_argmax_gpu_rows(n, n_rows, &launch));
    return qn_api_run(kernels, stream, &launch, 1, &a);
}

qn_status qn_cuda_rows_prepare(qn_cuda_kernels *kernels)
{
    qn_launch launches[4];
    QN_TRY(qn_norm_gpu_views(1, 1, &launches[0]));
    QN_TRY(qn_norm_gpu_views(QN_NORM_WARP_MAX + 1, 1, &launches[1]));
    QN_TRY(qn_elementwise_gpu_swiglu_views(1, 1, &launches[2]));
    QN_TRY(qn_argmax_gpu_rows(1, 1, &launches[3]));
    return qn_api_load(kernels, launches, sizeof launches / sizeof *launches);
}
