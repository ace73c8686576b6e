/* Helpers of all functions of quern/cuda.h: the handle, checks of views, queueing of launches. Any thread may call
 * them, with the CUDA context that is current to it; they queue work in the caller's stream. */
#ifndef QN_CUDA_API_API_H
#define QN_CUDA_API_API_H

#include "quern/cuda.h"

#include "cuda/runtime/runtime.h"

struct qn_cuda_driver;
struct qn_cuda_tools;

/* qn_cuda_kernels_open_with - As qn_cuda_kernels_open, with another driver and other sources of kernel code; NULL: the
 * usual ones. */
qn_status qn_cuda_kernels_open_with(qn_cuda_kernels **kernels, int ordinal, const struct qn_cuda_driver *driver,
                                    const struct qn_cuda_tools *tools);

/* qn_api_info - Returns the properties of a handle's device. */
const qn_cuda_info *qn_api_info(const qn_cuda_kernels *kernels);

/* qn_api_given - Returns whether an optional view is given: it is not all-zero. */
bool qn_api_given(qn_cuda_view view);

/* Alignment in bytes of arrays that kernels read 16 bytes at a time. */
enum { QN_API_ALIGNMENT = 16 };

/* qn_api_check_rows - Checks a view of n_rows rows of `row` elements of `dtype`: type, count, stride, and alignment of
 * the address. *stride is the view's stride, which fits 32 bits. QN_ERR_INVALID, with `name` in the message, as in all
 * checks below. */
qn_status qn_api_check_rows(const char *name, qn_cuda_view view, qn_dtype dtype, size_t n_rows, size_t row,
                            size_t alignment, uint32_t *stride);

/* qn_api_check_array - Checks a view of n contiguous elements of `dtype`. */
qn_status qn_api_check_array(const char *name, qn_cuda_view view, qn_dtype dtype, size_t n);

/* qn_api_check_float_type - Checks that the view's type is F32, F16 or BF16. */
qn_status qn_api_check_float_type(const char *name, qn_cuda_view view);

/* qn_api_check_u32 - Checks a view of n contiguous elements of type U32 or I32. */
qn_status qn_api_check_u32(const char *name, qn_cuda_view view, size_t n);

/* qn_api_check_tables - Checks the page tables of n_sequences sequences with `capacity` positions each: type, count,
 * and that `capacity` is a multiple of the page size. */
qn_status qn_api_check_tables(qn_cuda_view tables, size_t n_sequences, size_t capacity);

/* qn_api_check_page_offset - Checks that the offset of an array in a page is a multiple of QN_API_ALIGNMENT. */
qn_status qn_api_check_page_offset(const char *name, size_t offset);

/* qn_api_check_in_place - Checks that an output at the address of the input `of` has the input's type and row stride.
 */
qn_status qn_api_check_in_place(const char *name, qn_cuda_view out, uint32_t out_stride, const char *of,
                                qn_cuda_view in, uint32_t in_stride);

/* qn_api_check_seqlens - Checks the cu_seqlens of n_sequences sequences: type, count, alignment, and that `batch` is
 * 1. */
qn_status qn_api_check_seqlens(qn_cuda_view cu_seqlens, size_t n_sequences, size_t batch);

/* qn_api_check_indices - Checks the state_indices of n sequences. An all-zero view is allowed; *address is 0 then. */
qn_status qn_api_check_indices(qn_cuda_view state_indices, size_t n, uint64_t *address);

/* qn_api_check_workspace - Checks that a workspace of `bytes` bytes has the `needed` bytes. NULL is allowed if `needed`
 * is 0. */
qn_status qn_api_check_workspace(size_t needed, const void *workspace, size_t bytes);

/* qn_api_check_eps - Checks that eps is finite and more than 0. */
qn_status qn_api_check_eps(float eps);

/* A launch with its arguments. */
typedef struct qn_api_call {
    qn_launch launch;
    const void *args;
} qn_api_call;

/* qn_api_run_calls - As qn_api_run, for launches that each have their own arguments. */
qn_status qn_api_run_calls(qn_cuda_kernels *kernels, qn_stream stream, const qn_api_call *calls, size_t n);

/* qn_api_run - Queues n launches with the same arguments in the stream, in the current context. Loads all of them
 * before it queues the first; QN_ERR_INVALID if one is not loaded and the stream is being captured. */
qn_status qn_api_run(qn_cuda_kernels *kernels, qn_stream stream, const qn_launch *launches, size_t n, const void *args);

/* qn_api_make_ready - Loads the code of n launches if it is not loaded. Call it before several calls of
 * qn_api_run_calls, so that all of them or none are queued. QN_ERR_INVALID as for qn_api_run. */
qn_status qn_api_make_ready(qn_cuda_kernels *kernels, qn_stream stream, const qn_launch *launches, size_t n);

/* qn_api_clear - Queues setting `bytes` bytes of device memory to zero, in the current context. */
qn_status qn_api_clear(qn_cuda_kernels *kernels, qn_stream stream, uint64_t address, size_t bytes);

/* qn_api_load - Loads the code of n launches in the current context. */
qn_status qn_api_load(qn_cuda_kernels *kernels, const qn_launch *launches, size_t n);

static inline uint64_t qn_api_address(qn_cuda_view view)
{
    return (uint64_t)(uintptr_t)view.data;
}

#endif
