/* What the functions of quern/cuda.h share: the handle, checks of views, queueing of launches. */
#ifndef QN_CUDA_API_API_H
#define QN_CUDA_API_API_H

#include "quern/cuda.h"

#include "cuda/runtime/runtime.h"

struct qn_cuda_driver;
struct qn_cuda_tools;

/* qn_cuda_kernels_open_with - qn_cuda_kernels_open with another driver and other sources of code; NULL: the usual
 * ones. */
qn_status qn_cuda_kernels_open_with(qn_cuda_kernels **kernels, int ordinal, const struct qn_cuda_driver *driver,
                                    const struct qn_cuda_tools *tools);

/* qn_api_info - the device of a handle. */
const qn_cuda_info *qn_api_info(const qn_cuda_kernels *kernels);

/* qn_api_given - whether an optional view is given: it is not all-zero. */
bool qn_api_given(qn_cuda_view view);

/* Of the addresses of arrays that kernels read 16 bytes at a time. */
enum { QN_API_ALIGNMENT = 16 };

/* qn_api_check_rows - n_rows rows of `row` elements of `dtype`: type, count, distance, alignment of the address.
 * *stride is the distance, which fits 32 bits. `name` is used in the message. */
qn_status qn_api_check_rows(const char *name, qn_cuda_view view, qn_dtype dtype, size_t n_rows, size_t row,
                            size_t alignment, uint32_t *stride);

/* qn_api_check_array - n contiguous elements of `dtype`. */
qn_status qn_api_check_array(const char *name, qn_cuda_view view, qn_dtype dtype, size_t n);

/* qn_api_check_float_type - the view's type is F32, F16 or BF16. */
qn_status qn_api_check_float_type(const char *name, qn_cuda_view view);

/* qn_api_check_u32 - n contiguous elements of type U32, or I32 in its place. */
qn_status qn_api_check_u32(const char *name, qn_cuda_view view, size_t n);

/* qn_api_check_tables - page tables of n_sequences sequences with `capacity` positions each: type, count, whole
 * pages. */
qn_status qn_api_check_tables(qn_cuda_view tables, size_t n_sequences, size_t capacity);

/* qn_api_check_page_offset - of an array in a page: a multiple of QN_API_ALIGNMENT. */
qn_status qn_api_check_page_offset(const char *name, size_t offset);

/* qn_api_check_in_place - an output at the address of an input has its type and distance of rows. */
qn_status qn_api_check_in_place(const char *name, qn_cuda_view out, uint32_t out_stride, const char *of,
                                qn_cuda_view in, uint32_t in_stride);

/* qn_api_check_seqlens - cu_seqlens of n_sequences sequences: type, count, alignment; batch is 1. */
qn_status qn_api_check_seqlens(qn_cuda_view cu_seqlens, size_t n_sequences, size_t batch);

/* qn_api_check_indices - state_indices of n sequences, which may be all-zero; *address is 0 then. */
qn_status qn_api_check_indices(qn_cuda_view state_indices, size_t n, uint64_t *address);

/* qn_api_check_workspace - a workspace of `bytes` where `needed` are needed; NULL is allowed for none. */
qn_status qn_api_check_workspace(size_t needed, const void *workspace, size_t bytes);

/* qn_api_check_eps - eps is finite and more than 0. */
qn_status qn_api_check_eps(float eps);

/* A launch with its arguments. */
typedef struct qn_api_call {
    qn_launch launch;
    const void *args;
} qn_api_call;

/* qn_api_run_calls - qn_api_run for launches with arguments of their own. */
qn_status qn_api_run_calls(qn_cuda_kernels *kernels, qn_stream stream, const qn_api_call *calls, size_t n);

/* qn_api_run - queue n launches with the same arguments in the stream, in the current context. All of them are loaded
 * before the first is queued; QN_ERR_INVALID if one is not loaded and the stream is captured. */
qn_status qn_api_run(qn_cuda_kernels *kernels, qn_stream stream, const qn_launch *launches, size_t n, const void *args);

/* qn_api_make_ready - load what is not loaded of n launches, before several calls of qn_api_run_calls that queue all or
 * none of them. QN_ERR_INVALID as for qn_api_run. */
qn_status qn_api_make_ready(qn_cuda_kernels *kernels, qn_stream stream, const qn_launch *launches, size_t n);

/* qn_api_clear - queue the setting of device memory to zeros, in the current context. */
qn_status qn_api_clear(qn_cuda_kernels *kernels, qn_stream stream, uint64_t address, size_t bytes);

/* qn_api_load - load the code of n launches in the current context. */
qn_status qn_api_load(qn_cuda_kernels *kernels, const qn_launch *launches, size_t n);

static inline uint64_t qn_api_address(qn_cuda_view view)
{
    return (uint64_t)(uintptr_t)view.data;
}

#endif
