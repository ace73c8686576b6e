/* Device memory, page-locked host memory, and copies between them. */
#include "device/cuda/cuda.h"

#include "base/memory.h"
#include "device/cuda/internal.h"

#include <string.h>

qn_status qn_cuda_free_memory(qn_cuda *device, size_t *bytes)
{
    size_t total;
    QN_TRY(qn_cuda_enter(device));
    return QN_CU(device->driver, cuMemGetInfo, bytes, &total);
}

qn_status qn_cuda_alloc(qn_cuda *device, size_t count, size_t size, const char *what, qn_cuda_buffer *buffer)
{
    size_t bytes;
    *buffer = (qn_cuda_buffer){ 0 };
    if (!qn_mul_size(count, size, &bytes))
        return qn_fail(QN_ERR_MEMORY, "%s: %zu times %zu bytes is more than memory can be", what, count, size);
    QN_TRY(qn_cuda_enter(device));
    const qn_status status = QN_CU(device->driver, cuMemAlloc, &buffer->address, bytes ? bytes : 1);
    if (status)
        return qn_fail(status, "%s: %zu bytes of device memory: %s", what, bytes, qn_error_text());
    buffer->bytes = bytes;
    return QN_OK;
}

void qn_cuda_release(qn_cuda *device, qn_cuda_buffer *buffer)
{
    if (buffer->address && !qn_cuda_enter(device))
        (void)device->driver->cuMemFree(buffer->address);
    *buffer = (qn_cuda_buffer){ 0 };
}

qn_status qn_cuda_alloc_host(qn_cuda *device, size_t bytes, const char *what, void **memory)
{
    *memory = NULL;
    QN_TRY(qn_cuda_enter(device));
    const qn_status status = QN_CU(device->driver, cuMemHostAlloc, memory, bytes ? bytes : 1, QN_CU_HOST_PORTABLE);
    return status ? qn_fail(status, "%s: %zu bytes of page-locked memory: %s", what, bytes, qn_error_text()) : QN_OK;
}

void qn_cuda_release_host(qn_cuda *device, void *memory)
{
    if (memory && !qn_cuda_enter(device))
        (void)device->driver->cuMemFreeHost(memory);
}

/* ---- Copies in the order of a stream ---- */

qn_status qn_cuda_copy_in(qn_cuda *device, qn_cuda_stream stream, uint64_t to, const void *from, size_t bytes)
{
    QN_TRY(qn_cuda_enter(device));
    return bytes ? QN_CU(device->driver, cuMemcpyHtoDAsync, to, from, bytes, stream) : QN_OK;
}

qn_status qn_cuda_copy_out(qn_cuda *device, qn_cuda_stream stream, void *to, uint64_t from, size_t bytes)
{
    QN_TRY(qn_cuda_enter(device));
    return bytes ? QN_CU(device->driver, cuMemcpyDtoHAsync, to, from, bytes, stream) : QN_OK;
}

qn_status qn_cuda_copy(qn_cuda *device, qn_cuda_stream stream, uint64_t to, uint64_t from, size_t bytes)
{
    QN_TRY(qn_cuda_enter(device));
    return bytes ? QN_CU(device->driver, cuMemcpyDtoDAsync, to, from, bytes, stream) : QN_OK;
}

qn_status qn_cuda_fill(qn_cuda *device, qn_cuda_stream stream, uint64_t to, uint8_t value, size_t bytes)
{
    QN_TRY(qn_cuda_enter(device));
    return bytes ? QN_CU(device->driver, cuMemsetD8Async, to, value, bytes, stream) : QN_OK;
}

qn_status qn_cuda_download(qn_cuda *device, qn_cuda_stream stream, void *to, uint64_t from, size_t bytes)
{
    QN_TRY(qn_cuda_copy_out(device, stream, to, from, bytes));
    return qn_cuda_stream_wait(device, stream);
}

/* ---- Uploads ---- */

static qn_status make_stages(qn_cuda *device)
{
    if (!device->stage_stream)
        QN_TRY(qn_cuda_stream_create(device, &device->stage_stream));
    for (size_t i = 0; i < QN_STAGES; i++) {
        if (!device->stage_events[i])
            QN_TRY(qn_cuda_event_create(device, &device->stage_events[i]));
        if (!device->stages[i])
            QN_TRY(qn_cuda_alloc_host(device, QN_STAGE_BYTES, "upload", &device->stages[i]));
    }
    return QN_OK;
}

/* While one piece is on its way the next one is copied together. */
static qn_status upload(qn_cuda *device, uint64_t to, const uint8_t *from, size_t bytes,
                        bool (*on_progress)(void *user, size_t done), void *user)
{
    QN_TRY(make_stages(device));
    size_t done = 0;
    for (size_t piece = 0; done < bytes; piece++) {
        const size_t n = bytes - done < QN_STAGE_BYTES ? bytes - done : QN_STAGE_BYTES, stage = piece % QN_STAGES;
        if (piece >= QN_STAGES)
            QN_TRY(qn_cuda_event_wait(device, device->stage_events[stage]));
        memcpy(device->stages[stage], from + done, n);
        QN_TRY(qn_cuda_copy_in(device, device->stage_stream, to + done, device->stages[stage], n));
        QN_TRY(qn_cuda_event_record(device, device->stage_events[stage], device->stage_stream));
        done += n;
        if (on_progress && !on_progress(user, done))
            return qn_fail(QN_ERR_CANCELLED, "the upload was cancelled after %zu of %zu bytes", done, bytes);
    }
    return QN_OK;
}

qn_status qn_cuda_upload(qn_cuda *device, uint64_t to, const void *from, size_t bytes,
                         bool (*on_progress)(void *user, size_t done), void *user)
{
    pthread_mutex_lock(&device->stage_lock);
    qn_status status = upload(device, to, from, bytes, on_progress, user);
    /* after a failure, too: the pieces must be free for the next one. The first failure is the one to tell of. */
    const bool failed = status != QN_OK;
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), sizeof text);
    if (device->stage_stream) {
        const qn_status waited = qn_cuda_stream_wait(device, device->stage_stream);
        status = failed ? qn_fail(status, "%s", text) : waited;
    }
    pthread_mutex_unlock(&device->stage_lock);
    return status;
}
