/* Device memory, pinned host memory, and copies between them. */
#include "cuda/runtime/runtime.h"

#include "base/memory.h"
#include "cuda/runtime/context.h"

#include <string.h>

qn_status qn_cuda_available_memory(qn_cuda *device, size_t *bytes)
{
    size_t total;
    QN_TRY(qn_cuda_make_current(device));
    QN_TRY(QN_CU(device->driver, cuMemGetInfo, bytes, &total));
    if (total > device->memory_limit) {
        const size_t used = total - *bytes;
        *bytes = used < device->memory_limit ? (size_t)device->memory_limit - used : 0;
    }
    return QN_OK;
}

qn_status qn_cuda_alloc(qn_cuda *device, size_t count, size_t size, const char *what, qn_cuda_buffer *buffer)
{
    size_t bytes;
    *buffer = (qn_cuda_buffer){ 0 };
    if (!qn_mul_size(count, size, &bytes))
        return qn_fail(QN_ERR_MEMORY, "%s: %zu times %zu bytes overflow", what, count, size);
    QN_TRY(qn_cuda_make_current(device));
    const qn_status status = QN_CU(device->driver, cuMemAlloc, &buffer->address, bytes ? bytes : 1);
    if (status)
        return qn_fail(status, "%s: %zu bytes of device memory: %s", what, bytes, qn_error_text());
    buffer->bytes = bytes;
    return qn_cuda_poison_now(device, buffer->address, bytes);
}

void qn_cuda_free(qn_cuda *device, qn_cuda_buffer *buffer)
{
    if (buffer->address && !qn_cuda_make_current(device))
        (void)device->driver->cuMemFree(buffer->address);
    *buffer = (qn_cuda_buffer){ 0 };
}

qn_status qn_cuda_alloc_host(qn_cuda *device, size_t bytes, const char *what, void **memory)
{
    *memory = NULL;
    QN_TRY(qn_cuda_make_current(device));
    const qn_status status = QN_CU(device->driver, cuMemHostAlloc, memory, bytes ? bytes : 1, QN_CU_HOST_PORTABLE);
    if (status)
        return qn_fail(status, "%s: %zu bytes of pinned memory: %s", what, bytes, qn_error_text());
    qn_cuda_poison_host(device, *memory, bytes);
    return QN_OK;
}

void qn_cuda_free_host(qn_cuda *device, void *memory)
{
    if (memory && !qn_cuda_make_current(device))
        (void)device->driver->cuMemFreeHost(memory);
}

/* ---- Copies in the order of a stream ---- */

qn_status qn_cuda_copy_h2d(qn_cuda *device, qn_cuda_stream stream, uint64_t to, const void *from, size_t bytes)
{
    if (!bytes)
        return QN_OK;
    QN_TRY(qn_cuda_make_current(device));
    QN_TRY(qn_cuda_delay(device, stream, false));
    return QN_CU(device->driver, cuMemcpyHtoDAsync, to, from, bytes, stream);
}

qn_status qn_cuda_copy_d2h(qn_cuda *device, qn_cuda_stream stream, void *to, uint64_t from, size_t bytes)
{
    if (!bytes)
        return QN_OK;
    QN_TRY(qn_cuda_make_current(device));
    QN_TRY(qn_cuda_delay(device, stream, false));
    return QN_CU(device->driver, cuMemcpyDtoHAsync, to, from, bytes, stream);
}

qn_status qn_cuda_copy_d2d(qn_cuda *device, qn_cuda_stream stream, uint64_t to, uint64_t from, size_t bytes)
{
    if (!bytes)
        return QN_OK;
    QN_TRY(qn_cuda_make_current(device));
    QN_TRY(qn_cuda_delay(device, stream, false));
    return QN_CU(device->driver, cuMemcpyDtoDAsync, to, from, bytes, stream);
}

qn_status qn_cuda_memset(qn_cuda *device, qn_cuda_stream stream, uint64_t to, uint8_t value, size_t bytes)
{
    if (!bytes)
        return QN_OK;
    QN_TRY(qn_cuda_make_current(device));
    QN_TRY(qn_cuda_delay(device, stream, false));
    return QN_CU(device->driver, cuMemsetD8Async, to, value, bytes, stream);
}

qn_status qn_cuda_download(qn_cuda *device, qn_cuda_stream stream, void *to, uint64_t from, size_t bytes)
{
    QN_TRY(qn_cuda_copy_d2h(device, stream, to, from, bytes));
    return qn_cuda_stream_synchronize(device, stream);
}

/* ---- Copies through staging buffers ---- */

static qn_staging *acquire_staging(qn_cuda *device)
{
    qn_staging *staging = NULL;
    pthread_mutex_lock(&device->staging_lock);
    while (!staging) {
        for (size_t i = 0; i < QN_MAX_UPLOADS && !staging; i++)
            if (!device->staging_pool[i].busy)
                staging = &device->staging_pool[i];
        if (!staging)
            pthread_cond_wait(&device->staging_available, &device->staging_lock);
    }
    staging->busy = true;
    pthread_mutex_unlock(&device->staging_lock);
    return staging;
}

static void release_staging(qn_cuda *device, qn_staging *staging)
{
    pthread_mutex_lock(&device->staging_lock);
    staging->busy = false;
    pthread_cond_signal(&device->staging_available);
    pthread_mutex_unlock(&device->staging_lock);
}

/* Creates the stream, events and buffers on first use; they are kept until the device is closed. */
static qn_status init_staging(qn_cuda *device, qn_staging *staging)
{
    if (!staging->stream)
        QN_TRY(qn_cuda_stream_create(device, &staging->stream));
    for (size_t i = 0; i < QN_STAGING_BUFFERS; i++) {
        if (!staging->copied[i])
            QN_TRY(qn_cuda_event_create(device, &staging->copied[i]));
        if (!staging->buffers[i])
            QN_TRY(qn_cuda_alloc_host(device, QN_STAGING_BYTES, "upload", &staging->buffers[i]));
    }
    return QN_OK;
}

static qn_status upload(qn_cuda *device, qn_staging *staging, uint64_t to, const uint8_t *from, size_t bytes,
                        bool (*on_progress)(void *user, size_t done), void *user)
{
    QN_TRY(init_staging(device, staging));
    size_t done = 0;
    for (size_t piece = 0; done < bytes; piece++) {
        const size_t n = bytes - done < QN_STAGING_BYTES ? bytes - done : QN_STAGING_BYTES,
                     slot = piece % QN_STAGING_BUFFERS;
        if (piece >= QN_STAGING_BUFFERS)
            QN_TRY(qn_cuda_event_synchronize(device, staging->copied[slot]));
        memcpy(staging->buffers[slot], from + done, n);
        QN_TRY(qn_cuda_copy_h2d(device, staging->stream, to + done, staging->buffers[slot], n));
        QN_TRY(qn_cuda_event_record(device, staging->copied[slot], staging->stream));
        done += n;
        if (on_progress && !on_progress(user, done))
            return qn_fail(QN_ERR_CANCELLED, "the upload was cancelled after %zu of %zu bytes", done, bytes);
    }
    return QN_OK;
}

/* Waits after a failure too, because the next copy reuses the staging buffers. Returns the first failure. */
static qn_status end_staging(qn_cuda *device, qn_staging *staging, qn_status status)
{
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), sizeof text);
    if (staging->stream) {
        const qn_status waited = qn_cuda_stream_synchronize(device, staging->stream);
        status = status ? qn_fail(status, "%s", text) : waited;
    }
    for (size_t i = 0; i < QN_STAGING_BUFFERS; i++)
        qn_cuda_poison_host(device, staging->buffers[i], QN_STAGING_BYTES);
    release_staging(device, staging);
    return status;
}

qn_status qn_cuda_upload(qn_cuda *device, uint64_t to, const void *from, size_t bytes,
                         bool (*on_progress)(void *user, size_t done), void *user)
{
    qn_staging *staging = acquire_staging(device);
    const qn_status status = upload(device, staging, to, from, bytes, on_progress, user);
    return end_staging(device, staging, status);
}

/* Downloads piece by piece: the copy of a piece is in flight while the previous piece is copied out of its staging
 * buffer. */
static qn_status download(qn_cuda *device, qn_staging *staging, uint8_t *to, uint64_t from, size_t bytes)
{
    const size_t n_pieces = bytes / QN_STAGING_BYTES + (bytes % QN_STAGING_BYTES != 0);
    QN_TRY(init_staging(device, staging));
    for (size_t piece = 0; piece <= n_pieces; piece++) {
        const size_t at = piece * QN_STAGING_BYTES, slot = piece % QN_STAGING_BUFFERS;
        if (piece < n_pieces) {
            const size_t n = bytes - at < QN_STAGING_BYTES ? bytes - at : QN_STAGING_BYTES;
            QN_TRY(qn_cuda_copy_d2h(device, staging->stream, staging->buffers[slot], from + at, n));
            QN_TRY(qn_cuda_event_record(device, staging->copied[slot], staging->stream));
        }
        if (piece > 0) {
            const size_t before = at - QN_STAGING_BYTES, other = (piece - 1) % QN_STAGING_BUFFERS;
            QN_TRY(qn_cuda_event_synchronize(device, staging->copied[other]));
            memcpy(to + before, staging->buffers[other], bytes < at ? bytes - before : QN_STAGING_BYTES);
        }
    }
    return QN_OK;
}

qn_status qn_cuda_download_staged(qn_cuda *device, void *to, uint64_t from, size_t bytes)
{
    qn_staging *staging = acquire_staging(device);
    const qn_status status = download(device, staging, to, from, bytes);
    return end_staging(device, staging, status);
}
