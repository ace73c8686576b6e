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

static qn_stage *take_stage(qn_cuda *device)
{
    qn_stage *stage = NULL;
    pthread_mutex_lock(&device->stage_lock);
    while (!stage) {
        for (size_t i = 0; i < QN_UPLOADS && !stage; i++)
            if (!device->stages[i].busy)
                stage = &device->stages[i];
        if (!stage)
            pthread_cond_wait(&device->stage_free, &device->stage_lock);
    }
    stage->busy = true;
    pthread_mutex_unlock(&device->stage_lock);
    return stage;
}

static void give_stage(qn_cuda *device, qn_stage *stage)
{
    pthread_mutex_lock(&device->stage_lock);
    stage->busy = false;
    pthread_cond_signal(&device->stage_free);
    pthread_mutex_unlock(&device->stage_lock);
}

/* What it has already stays: a device that uploads once will do so again. */
static qn_status make_stage(qn_cuda *device, qn_stage *stage)
{
    if (!stage->stream)
        QN_TRY(qn_cuda_stream_create(device, &stage->stream));
    for (size_t i = 0; i < QN_PIECES; i++) {
        if (!stage->sent[i])
            QN_TRY(qn_cuda_event_create(device, &stage->sent[i]));
        if (!stage->pieces[i])
            QN_TRY(qn_cuda_alloc_host(device, QN_PIECE_BYTES, "upload", &stage->pieces[i]));
    }
    return QN_OK;
}

static qn_status upload(qn_cuda *device, qn_stage *stage, uint64_t to, const uint8_t *from, size_t bytes,
                        bool (*on_progress)(void *user, size_t done), void *user)
{
    QN_TRY(make_stage(device, stage));
    size_t done = 0;
    for (size_t piece = 0; done < bytes; piece++) {
        const size_t n = bytes - done < QN_PIECE_BYTES ? bytes - done : QN_PIECE_BYTES, slot = piece % QN_PIECES;
        if (piece >= QN_PIECES)
            QN_TRY(qn_cuda_event_wait(device, stage->sent[slot]));
        memcpy(stage->pieces[slot], from + done, n);
        QN_TRY(qn_cuda_copy_in(device, stage->stream, to + done, stage->pieces[slot], n));
        QN_TRY(qn_cuda_event_record(device, stage->sent[slot], stage->stream));
        done += n;
        if (on_progress && !on_progress(user, done))
            return qn_fail(QN_ERR_CANCELLED, "the upload was cancelled after %zu of %zu bytes", done, bytes);
    }
    return QN_OK;
}

qn_status qn_cuda_upload(qn_cuda *device, uint64_t to, const void *from, size_t bytes,
                         bool (*on_progress)(void *user, size_t done), void *user)
{
    qn_stage *stage = take_stage(device);
    qn_status status = upload(device, stage, to, from, bytes, on_progress, user);
    /* after a failure, too: the pieces must be free for the next one. The first failure is the one to tell of. */
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), sizeof text);
    if (stage->stream) {
        const qn_status waited = qn_cuda_stream_wait(device, stage->stream);
        status = status ? qn_fail(status, "%s", text) : waited;
    }
    give_stage(device, stage);
    return status;
}
