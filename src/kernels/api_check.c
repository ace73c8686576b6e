/* Argument checks shared by the public kernels, and the kernel table that they call. */
#include "kernels/api_check.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "quant/quant.h"

#include <pthread.h>
#include <string.h>

qn_kernels qn_api_kernels;
static qn_status kernels_status;
static char kernels_error[QN_ERROR_TEXT_MAX];
static pthread_once_t kernels_once = PTHREAD_ONCE_INIT;

static void fill_kernels(void)
{
    unsigned cpu;
    kernels_status = qn_cpu_features(&cpu);
    if (kernels_status == QN_OK)
        qn_kernels_init(&qn_api_kernels, cpu);
    else
        memcpy(kernels_error, qn_error_text(), sizeof kernels_error);
}

qn_status qn_api_ready(void)
{
    pthread_once(&kernels_once, fill_kernels);
    return kernels_status == QN_OK ? QN_OK : qn_fail(kernels_status, "%s", kernels_error);
}

static const char *dtype_name(qn_dtype dtype)
{
    const qn_type_info *info = qn_type_find((uint32_t)dtype);
    return info ? info->name : dtype == QN_DTYPE_U32 ? "u32" : "unknown";
}

qn_status qn_check_view(const char *name, qn_view view, qn_dtype dtype, size_t a, size_t b, size_t c)
{
    size_t need;
    if (!qn_mul_size(a, b, &need) || !qn_mul_size(need, c, &need) || need > PTRDIFF_MAX / 8)
        return qn_fail(QN_ERR_INVALID, "%s: %zu x %zu x %zu elements do not fit in memory", name, a, b, c);
    if (view.dtype != dtype)
        return qn_fail(QN_ERR_INVALID, "%s: type %s (%d), expected %s", name, dtype_name(view.dtype), (int)view.dtype,
                       dtype_name(dtype));
    if (view.count < need)
        return qn_fail(QN_ERR_INVALID, "%s: %zu elements, expected at least %zu", name, view.count, need);
    if (need && !view.data)
        return qn_fail(QN_ERR_INVALID, "%s: NULL, expected %zu elements", name, need);
    return QN_OK;
}

qn_status qn_check_float_type(const char *name, qn_view view)
{
    if (view.dtype == QN_DTYPE_F32 || view.dtype == QN_DTYPE_F16 || view.dtype == QN_DTYPE_BF16)
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "%s: type %s (%d), expected f32, f16 or bf16", name, dtype_name(view.dtype),
                   (int)view.dtype);
}

bool qn_view_absent(qn_view view)
{
    return !view.data && !view.count;
}

static qn_status check_offsets(qn_sequences *out, qn_view cu_seqlens)
{
    size_t n_offsets;
    if (!qn_add_size(out->n, 1, &n_offsets))
        return qn_fail(QN_ERR_INVALID, "n_sequences: %zu, which does not fit in memory", out->n);
    QN_TRY(qn_check_view("cu_seqlens", cu_seqlens, QN_DTYPE_U32, n_offsets, 1, 1));
    out->offsets = cu_seqlens.data;
    if (out->offsets[0])
        return qn_fail(QN_ERR_INVALID, "cu_seqlens: element 0 is %u, expected 0", (unsigned)out->offsets[0]);
    for (size_t i = 0; i < out->n; i++)
        if (out->offsets[i + 1] < out->offsets[i] || out->offsets[i + 1] > out->tokens)
            return qn_fail(QN_ERR_INVALID, "cu_seqlens: element %zu is %u, expected from %u to %zu tokens", i + 1,
                           (unsigned)out->offsets[i + 1], (unsigned)out->offsets[i], out->tokens);
    return QN_OK;
}

qn_status qn_check_sequences(size_t batch, size_t tokens, size_t n_sequences, qn_view cu_seqlens, qn_sequences *out)
{
    *out = (qn_sequences){ .n = n_sequences ? n_sequences : batch, .tokens = tokens };
    if (!qn_mul_size(batch, tokens, &out->rows))
        return qn_fail(QN_ERR_INVALID, "batch, tokens: %zu x %zu do not fit in memory", batch, tokens);
    if (!n_sequences)
        return QN_OK;
    if (batch != 1)
        return qn_fail(QN_ERR_INVALID, "batch: %zu, expected 1 with %zu packed sequences", batch, n_sequences);
    return check_offsets(out, cu_seqlens);
}

size_t qn_sequence_at(const qn_sequences *sequences, size_t i, size_t *n)
{
    if (!sequences->offsets) {
        *n = sequences->tokens;
        return i * sequences->tokens;
    }
    *n = sequences->offsets[i + 1] - sequences->offsets[i];
    return sequences->offsets[i];
}
