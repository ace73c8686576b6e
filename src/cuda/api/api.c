/* The handle of quern/cuda.h: the code loaded in each context in which its functions were called; and the checks shared
 * by these functions. */
#include "cuda/api/api.h"

#include "base/memory.h"
#include "base/process.h"
#include "cuda/runtime/driver.h"
#include "cuda/runtime/pipeline.h"
#include "cuda/kernels/kv.h"
#include "quant/quant.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct context_kernels {
    qn_cu_context context;
    unsigned long long id; /* tells a context from an earlier one at the same address; 0 if the driver has no ids */
    qn_cuda *cuda;
} context_kernels;

/* `lock` protects the array of contexts; other members are constant after opening. */
struct qn_cuda_kernels {
    pid_t process; /* the process that opened them (base/process.h) */
    const qn_cuda_driver *driver;
    const qn_cuda_tools *tools;
    qn_cuda_info info;
    qn_cu_device device;
    pthread_mutex_t lock; /* of the array */
    context_kernels *contexts;
    size_t n_contexts, cap_contexts;
};

/* ---- The handle ---- */

qn_status qn_cuda_kernels_open_with(qn_cuda_kernels **out, int ordinal, const qn_cuda_driver *driver,
                                    const qn_cuda_tools *tools)
{
    qn_cuda_kernels *k;
    if (!out)
        return qn_fail(QN_ERR_INVALID, "kernels: NULL");
    *out = NULL;
    qn_cuda_info info;
    qn_cu_device device;
    if (!driver)
        QN_TRY(qn_cuda_driver_load(&driver));
    QN_TRY(qn_cuda_read_info(driver, ordinal, &info));
    QN_TRY(QN_CU(driver, cuDeviceGet, &device, ordinal));
    QN_TRY(qn_alloc(&k, 1, sizeof *k, "kernels of a GPU"));
    *k = (qn_cuda_kernels){ .process = getpid(), .driver = driver, .tools = tools, .info = info, .device = device };
    if (pthread_mutex_init(&k->lock, NULL) != 0) {
        qn_free(k);
        return qn_fail(QN_ERR_MEMORY, "no memory for a lock");
    }
    *out = k;
    return QN_OK;
}

qn_status qn_cuda_kernels_open(qn_cuda_kernels **kernels, int ordinal)
{
    return qn_cuda_kernels_open_with(kernels, ordinal, NULL, NULL);
}

/* Closes the device of a context, or abandons it if the context is gone: the modules were freed with it; a new context
 * may have the same address. */
static void close_context(const qn_cuda_kernels *k, const context_kernels *c)
{
    unsigned long long id = 0;
    if (k->driver->cuCtxGetId && (k->driver->cuCtxGetId(c->context, &id) != QN_CU_SUCCESS || id != c->id))
        qn_cuda_abandon(c->cuda);
    else
        qn_cuda_close(c->cuda);
}

void qn_cuda_kernels_close(qn_cuda_kernels *kernels)
{
    if (!kernels || !qn_process_is(kernels->process))
        return;
    for (size_t i = 0; i < kernels->n_contexts; i++)
        close_context(kernels, &kernels->contexts[i]);
    pthread_mutex_destroy(&kernels->lock);
    free(kernels->contexts);
    qn_free(kernels);
}

const qn_cuda_info *qn_api_info(const qn_cuda_kernels *kernels)
{
    return &kernels->info;
}

/* Finds the code loaded in a context, or opens the device in it. Forgets an earlier context at the same address. The
 * caller holds the lock. */
static qn_status find_context(qn_cuda_kernels *k, qn_cu_context context, unsigned long long id, qn_cuda **cuda)
{
    for (size_t i = 0; i < k->n_contexts; i++)
        if (k->contexts[i].context == context && k->contexts[i].id == id) {
            *cuda = k->contexts[i].cuda;
            return QN_OK;
        } else if (k->contexts[i].context == context) {
            qn_cuda_abandon(k->contexts[i].cuda);
            k->contexts[i--] = k->contexts[--k->n_contexts];
        }
    QN_TRY(qn_realloc_array(&k->contexts, &k->cap_contexts, k->n_contexts + 1, sizeof *k->contexts, "contexts"));
    const qn_cuda_params params = {
        .ordinal = k->info.ordinal, .context = context, .driver = k->driver, .tools = k->tools
    };
    QN_TRY(qn_cuda_open(&params, cuda));
    k->contexts[k->n_contexts++] = (context_kernels){ .context = context, .id = id, .cuda = *cuda };
    return QN_OK;
}

/* Finds the code loaded in the context that is current to the calling thread. Takes the lock. */
static qn_status in_current_context(qn_cuda_kernels *k, qn_cuda **cuda)
{
    qn_cu_context context = NULL;
    qn_cu_device device;
    unsigned long long id = 0;
    if (!k)
        return qn_fail(QN_ERR_INVALID, "kernels: NULL");
    QN_TRY(qn_process_check(k->process, "quern/cuda.h", "handle of kernels"));
    QN_TRY(QN_CU(k->driver, cuCtxGetCurrent, &context));
    if (!context)
        return qn_fail(QN_ERR_INVALID, "no CUDA context is current to this thread");
    QN_TRY(QN_CU(k->driver, cuCtxGetDevice, &device));
    if (device != k->device)
        return qn_fail(QN_ERR_INVALID, "the current CUDA context is of another device, expected device %d (%s)",
                       k->info.ordinal, k->info.name);
    if (k->driver->cuCtxGetId)
        QN_TRY(QN_CU(k->driver, cuCtxGetId, context, &id));
    pthread_mutex_lock(&k->lock);
    const qn_status status = find_context(k, context, id, cuda);
    pthread_mutex_unlock(&k->lock);
    return status;
}

/* ---- Views ---- */

bool qn_api_given(qn_cuda_view view)
{
    return view.data || view.count;
}

static qn_status check_view(const char *name, qn_cuda_view view, qn_dtype dtype, size_t needed, size_t alignment)
{
    if (view.dtype != dtype)
        return qn_fail(QN_ERR_INVALID, "%s: data type %d, expected %d", name, (int)view.dtype, (int)dtype);
    if (view.count < needed)
        return qn_fail(QN_ERR_INVALID, "%s: %zu elements, expected at least %zu", name, view.count, needed);
    if (needed && !view.data)
        return qn_fail(QN_ERR_INVALID, "%s: NULL, expected %zu elements", name, needed);
    if (qn_api_address(view) % alignment)
        return qn_fail(QN_ERR_INVALID, "%s: address %#" PRIx64 ", expected a multiple of %zu", name,
                       qn_api_address(view), alignment);
    return QN_OK;
}

qn_status qn_api_check_rows(const char *name, qn_cuda_view view, qn_dtype dtype, size_t n_rows, size_t row,
                            size_t alignment, uint32_t *stride)
{
    const size_t distance = view.stride ? view.stride : row;
    size_t needed = 0;
    if (distance < row || distance > INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "%s: rows are %zu elements apart, expected %zu to %d", name, distance, row,
                       INT32_MAX);
    if (n_rows &&
        (__builtin_mul_overflow(n_rows - 1, distance, &needed) || __builtin_add_overflow(needed, row, &needed)))
        return qn_fail(QN_ERR_INVALID, "%s: %zu rows of %zu elements are too many", name, n_rows, distance);
    if ((dtype == QN_DTYPE_BF16 || dtype == QN_DTYPE_F16) && distance * sizeof(uint16_t) % alignment)
        return qn_fail(QN_ERR_INVALID, "%s: rows are %zu elements apart, expected a multiple of %zu", name, distance,
                       alignment / sizeof(uint16_t));
    *stride = (uint32_t)distance;
    return check_view(name, view, dtype, needed, alignment);
}

qn_status qn_api_check_array(const char *name, qn_cuda_view view, qn_dtype dtype, size_t n)
{
    return check_view(name, view, dtype, n, QN_API_ALIGNMENT);
}

qn_status qn_api_check_float_type(const char *name, qn_cuda_view view)
{
    if (view.dtype == QN_DTYPE_F32 || view.dtype == QN_DTYPE_F16 || view.dtype == QN_DTYPE_BF16)
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "%s: data type %d, expected %d (f32), %d (f16) or %d (bf16)", name, (int)view.dtype,
                   (int)QN_DTYPE_F32, (int)QN_DTYPE_F16, (int)QN_DTYPE_BF16);
}

qn_status qn_api_check_u32(const char *name, qn_cuda_view view, size_t n)
{
    return qn_api_check_array(name, view, view.dtype == QN_DTYPE_I32 ? QN_DTYPE_I32 : QN_DTYPE_U32, n);
}

qn_status qn_api_check_workspace(size_t needed, const void *workspace, size_t bytes)
{
    if (bytes < needed)
        return qn_fail(QN_ERR_INVALID, "workspace: %zu bytes, expected at least %zu", bytes, needed);
    if (needed && (!workspace || (uintptr_t)workspace % QN_API_ALIGNMENT))
        return qn_fail(QN_ERR_INVALID, "workspace: address %p, expected a multiple of %d", workspace,
                       (int)QN_API_ALIGNMENT);
    return QN_OK;
}

qn_status qn_api_check_eps(float eps)
{
    if (eps > 0 && isfinite(eps))
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "eps: %g, expected finite and more than 0", (double)eps);
}

qn_status qn_api_check_tables(qn_cuda_view tables, size_t n_sequences, size_t capacity)
{
    if (capacity % QN_PAGE)
        return qn_fail(QN_ERR_INVALID, "capacity: %zu, expected a multiple of %d with page tables", capacity,
                       (int)QN_PAGE);
    return qn_api_check_array("tables", tables, QN_DTYPE_I64, n_sequences);
}

qn_status qn_api_check_page_offset(const char *name, size_t offset)
{
    if (offset % QN_API_ALIGNMENT)
        return qn_fail(QN_ERR_INVALID, "%s: %zu, expected a multiple of %d", name, offset, (int)QN_API_ALIGNMENT);
    return QN_OK;
}

qn_status qn_api_check_in_place(const char *name, qn_cuda_view out, uint32_t out_stride, const char *of,
                                qn_cuda_view in, uint32_t in_stride)
{
    if (!out.data || out.data != in.data)
        return QN_OK;
    if (out.dtype != in.dtype)
        return qn_fail(QN_ERR_INVALID, "%s: data type %d, expected %d as %s, at whose address it is", name,
                       (int)out.dtype, (int)in.dtype, of);
    if (out_stride != in_stride)
        return qn_fail(QN_ERR_INVALID,
                       "%s: rows are %u elements apart, expected %u as those of %s, at whose address it is", name,
                       out_stride, in_stride, of);
    return QN_OK;
}

qn_status qn_api_check_seqlens(qn_cuda_view cu_seqlens, size_t n_sequences, size_t batch)
{
    const qn_dtype dtype = cu_seqlens.dtype;
    uint32_t unused;
    if (batch != 1)
        return qn_fail(QN_ERR_INVALID, "batch: %zu, expected 1 with cu_seqlens", batch);
    if (dtype != QN_DTYPE_U32 && dtype != QN_DTYPE_I32 && dtype != QN_DTYPE_I64)
        return qn_fail(QN_ERR_INVALID, "cu_seqlens: data type %d, expected %d (u32), %d (i32) or %d (i64)", (int)dtype,
                       (int)QN_DTYPE_U32, (int)QN_DTYPE_I32, (int)QN_DTYPE_I64);
    if (n_sequences >= INT32_MAX)
        return qn_fail(QN_ERR_INVALID, "n_sequences: %zu, expected less than %d", n_sequences, INT32_MAX);
    return qn_api_check_rows("cu_seqlens", cu_seqlens, dtype, 1, n_sequences + 1,
                             dtype == QN_DTYPE_I64 ? sizeof(int64_t) : sizeof(int32_t), &unused);
}

qn_status qn_api_check_indices(qn_cuda_view state_indices, size_t n, uint64_t *address)
{
    uint32_t unused;
    *address = 0;
    if (!qn_api_given(state_indices))
        return QN_OK;
    *address = qn_api_address(state_indices);
    return qn_api_check_rows("state_indices", state_indices, QN_DTYPE_I32, n ? 1 : 0, n, sizeof(int32_t), &unused);
}

/* ---- Launches ---- */

static qn_status make_ready(qn_cuda_kernels *kernels, qn_cuda *cuda, qn_stream stream, const qn_launch *launch)
{
    int capturing = 0;
    if (qn_cuda_is_prepared(cuda, launch))
        return QN_OK;
    QN_TRY(QN_CU(kernels->driver, cuStreamIsCapturing, stream, &capturing));
    if (capturing)
        return qn_fail(QN_ERR_INVALID,
                       "%s is not loaded, and the stream is captured: expected a call before the capture",
                       launch->function);
    return qn_cuda_prepare(cuda, launch);
}

qn_status qn_api_run(qn_cuda_kernels *kernels, qn_stream stream, const qn_launch *launches, size_t n, const void *args)
{
    qn_cuda *cuda;
    QN_TRY(qn_api_make_ready(kernels, stream, launches, n));
    QN_TRY(in_current_context(kernels, &cuda));
    for (size_t i = 0; i < n; i++)
        QN_TRY(qn_cuda_launch(cuda, stream, &launches[i], args));
    return QN_OK;
}

qn_status qn_api_run_calls(qn_cuda_kernels *kernels, qn_stream stream, const qn_api_call *calls, size_t n)
{
    qn_cuda *cuda;
    QN_TRY(in_current_context(kernels, &cuda));
    for (size_t i = 0; i < n; i++)
        QN_TRY(make_ready(kernels, cuda, stream, &calls[i].launch));
    for (size_t i = 0; i < n; i++)
        QN_TRY(qn_cuda_launch(cuda, stream, &calls[i].launch, calls[i].args));
    return QN_OK;
}

qn_status qn_api_make_ready(qn_cuda_kernels *kernels, qn_stream stream, const qn_launch *launches, size_t n)
{
    qn_cuda *cuda;
    QN_TRY(in_current_context(kernels, &cuda));
    for (size_t i = 0; i < n; i++)
        QN_TRY(make_ready(kernels, cuda, stream, &launches[i]));
    return QN_OK;
}

qn_status qn_api_clear(qn_cuda_kernels *kernels, qn_stream stream, uint64_t address, size_t bytes)
{
    qn_cuda *cuda;
    QN_TRY(in_current_context(kernels, &cuda));
    return qn_cuda_memset(cuda, stream, address, 0, bytes);
}

qn_status qn_api_load(qn_cuda_kernels *kernels, const qn_launch *launches, size_t n)
{
    qn_cuda *cuda;
    QN_TRY(in_current_context(kernels, &cuda));
    return qn_cuda_prepare_all(cuda, launches, n);
}
