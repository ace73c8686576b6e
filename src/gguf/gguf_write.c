/* Writes GGUF v3 files: assembles the header in memory, streams the tensors' data to a temporary file, and renames
 * it to the target (base/atomic_file.h). */
#include "gguf/file.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/atomic_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct bytes {
    uint8_t *data;
    size_t size, capacity;
};

struct qn_gguf_writer {
    qn_atomic_file file;
    size_t alignment;
    bool copies_alignment;      /* its key, too */
    struct bytes keys, tensors; /* the two sections of the header, serialised */
    uint64_t n_kv, n_tensors;
    size_t *tensor_bytes;
    size_t tensor_bytes_capacity;
    uint64_t data_bytes; /* of all tensors, padding included */
    bool header_written;
    size_t current, written; /* the tensor being written, and its bytes written so far */
};

static qn_status append(struct bytes *b, const void *data, size_t size)
{
    size_t need;
    if (!qn_add_size(b->size, size, &need))
        return qn_fail(QN_ERR_MEMORY, "GGUF header: %zu and %zu bytes do not fit in memory", b->size, size);
    QN_TRY(qn_realloc_array(&b->data, &b->capacity, need, 1, "GGUF header"));
    if (size > 0)
        memcpy(b->data + b->size, data, size);
    b->size = need;
    return QN_OK;
}

static qn_status append_u32(struct bytes *b, uint32_t value)
{
    return append(b, &value, sizeof value);
}

static qn_status append_u64(struct bytes *b, uint64_t value)
{
    return append(b, &value, sizeof value);
}

static qn_status append_string(struct bytes *b, const char *data, size_t length)
{
    QN_TRY(append_u64(b, length));
    return append(b, data, length);
}

qn_status qn_gguf_writer_create(const char *path, qn_gguf_writer **out)
{
    *out = NULL;
    qn_gguf_writer *w = calloc(1, sizeof *w);
    if (!w)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory to write it", path);
    w->alignment = QN_GGUF_DEFAULT_ALIGNMENT;
    const qn_status status = qn_atomic_file_create(&w->file, path, QN_FILE_SHARED);
    if (status) {
        qn_gguf_writer_free(w);
        return status;
    }
    *out = w;
    return QN_OK;
}

void qn_gguf_writer_free(qn_gguf_writer *w)
{
    if (!w)
        return;
    qn_atomic_file_free(&w->file);
    free(w->keys.data);
    free(w->tensors.data);
    free(w->tensor_bytes);
    free(w);
}

qn_status qn_gguf_writer_set_alignment(qn_gguf_writer *w, const qn_gguf *file)
{
    if (w->n_kv || w->n_tensors)
        return qn_fail(QN_ERR_INVALID, "%s: its alignment is set after keys or tensors were added", w->file.target);
    w->alignment = qn_gguf_alignment(file);
    w->copies_alignment = true;
    return QN_OK;
}

static qn_status begin_kv(qn_gguf_writer *w, const char *key, size_t length, qn_gguf_type type)
{
    if (w->header_written)
        return qn_fail(QN_ERR_INVALID, "%s: key '%.*s' is added after the data have begun", w->file.target,
                       (int)(length < 80 ? length : 80), key);
    QN_TRY(append_string(&w->keys, key, length));
    QN_TRY(append_u32(&w->keys, (uint32_t)type));
    w->n_kv++;
    return QN_OK;
}

qn_status qn_gguf_writer_add_u32(qn_gguf_writer *w, const char *key, uint32_t value)
{
    QN_TRY(begin_kv(w, key, strlen(key), QN_GGUF_U32));
    return append_u32(&w->keys, value);
}

qn_status qn_gguf_writer_add_f32(qn_gguf_writer *w, const char *key, float value)
{
    QN_TRY(begin_kv(w, key, strlen(key), QN_GGUF_F32));
    return append(&w->keys, &value, sizeof value);
}

qn_status qn_gguf_writer_add_string(qn_gguf_writer *w, const char *key, const char *value)
{
    QN_TRY(begin_kv(w, key, strlen(key), QN_GGUF_STRING));
    return append_string(&w->keys, value, strlen(value));
}

qn_status qn_gguf_writer_add_i32(qn_gguf_writer *w, const char *key, int32_t value)
{
    QN_TRY(begin_kv(w, key, strlen(key), QN_GGUF_I32));
    return append(&w->keys, &value, sizeof value);
}

qn_status qn_gguf_writer_add_bool(qn_gguf_writer *w, const char *key, bool value)
{
    const uint8_t byte = value;
    QN_TRY(begin_kv(w, key, strlen(key), QN_GGUF_BOOL));
    return append(&w->keys, &byte, 1);
}

static qn_status begin_array(qn_gguf_writer *w, const char *key, qn_gguf_type type, size_t count)
{
    QN_TRY(begin_kv(w, key, strlen(key), QN_GGUF_ARRAY));
    QN_TRY(append_u32(&w->keys, (uint32_t)type));
    return append_u64(&w->keys, count);
}

qn_status qn_gguf_writer_add_i32s(qn_gguf_writer *w, const char *key, const int32_t *values, size_t count)
{
    QN_TRY(begin_array(w, key, QN_GGUF_I32, count));
    return append(&w->keys, values, count * sizeof *values);
}

qn_status qn_gguf_writer_add_bools(qn_gguf_writer *w, const char *key, const bool *values, size_t count)
{
    QN_TRY(begin_array(w, key, QN_GGUF_BOOL, count));
    for (size_t i = 0; i < count; i++)
        QN_TRY(append(&w->keys, &(uint8_t){ values[i] }, 1));
    return QN_OK;
}

qn_status qn_gguf_writer_add_strings(qn_gguf_writer *w, const char *key, const qn_string *values, size_t count)
{
    QN_TRY(begin_array(w, key, QN_GGUF_STRING, count));
    for (size_t i = 0; i < count; i++)
        QN_TRY(append_string(&w->keys, values[i].data, values[i].length));
    return QN_OK;
}

qn_status qn_gguf_writer_copy(qn_gguf_writer *w, const qn_gguf_kv *kv)
{
    if (!w->copies_alignment && qn_string_equals(kv->key, "general.alignment"))
        return QN_OK;
    QN_TRY(begin_kv(w, kv->key.data, kv->key.length, kv->type));
    if (kv->type == QN_GGUF_ARRAY) {
        QN_TRY(append_u32(&w->keys, (uint32_t)kv->element_type));
        QN_TRY(append_u64(&w->keys, kv->count));
    }
    return append(&w->keys, kv->data, kv->bytes);
}

qn_status qn_gguf_writer_add_tensor(qn_gguf_writer *w, qn_string name, uint32_t type, uint32_t n_dims,
                                    const uint64_t *dims, size_t bytes)
{
    if (w->header_written)
        return qn_fail(QN_ERR_INVALID, "%s: tensor '%.*s' is added after the data have begun", w->file.target,
                       QN_STRING_ARGS(name));
    if (n_dims < 1 || n_dims > QN_GGUF_MAX_DIMS)
        return qn_fail(QN_ERR_INVALID, "%s: tensor '%.*s' has %u dimensions, expected 1 to %d", w->file.target,
                       QN_STRING_ARGS(name), n_dims, QN_GGUF_MAX_DIMS);
    if (bytes == 0)
        return qn_fail(QN_ERR_INVALID, "%s: tensor '%.*s' has no bytes", w->file.target, QN_STRING_ARGS(name));
    if (bytes > INT64_MAX - w->data_bytes - w->alignment)
        return qn_fail(QN_ERR_INVALID, "%s: tensor '%.*s' of %zu bytes makes the file too large", w->file.target,
                       QN_STRING_ARGS(name), bytes);
    QN_TRY(append_string(&w->tensors, name.data, name.length));
    QN_TRY(append_u32(&w->tensors, n_dims));
    for (uint32_t d = 0; d < n_dims; d++)
        QN_TRY(append_u64(&w->tensors, dims[d]));
    QN_TRY(append_u32(&w->tensors, type));
    QN_TRY(append_u64(&w->tensors, w->data_bytes));
    QN_TRY(qn_realloc_array(&w->tensor_bytes, &w->tensor_bytes_capacity, (size_t)w->n_tensors + 1,
                            sizeof *w->tensor_bytes, "sizes of tensors"));
    w->tensor_bytes[w->n_tensors++] = bytes;
    w->data_bytes += qn_round_up(bytes, w->alignment);
    return QN_OK;
}

static qn_status write_padding(qn_gguf_writer *w, size_t size)
{
    static const uint8_t zeros[4096] = { 0 };
    for (size_t left = qn_round_up(size, w->alignment) - size; left > 0;) {
        const size_t now = left < sizeof zeros ? left : sizeof zeros;
        QN_TRY(qn_atomic_file_write(&w->file, zeros, now));
        left -= now;
    }
    return QN_OK;
}

/* Allocates the disk space in advance, if the file system supports it, so that a full disk is an error now rather
 * than hours later. */
static qn_status preallocate(qn_gguf_writer *w, size_t header_bytes)
{
    const uint64_t size = qn_round_up(header_bytes, w->alignment) + w->data_bytes;
    if (!qn_file_reserve(w->file.fd, size))
        return qn_fail(QN_ERR_IO, "%s: no disk space for its %llu bytes: %s", w->file.target, (unsigned long long)size,
                       strerror(errno));
    return QN_OK;
}

qn_status qn_gguf_writer_begin_data(qn_gguf_writer *w)
{
    if (w->header_written)
        return qn_fail(QN_ERR_INVALID, "%s: its data have begun already", w->file.target);
    struct bytes start = { 0 };
    qn_status status = append(&start, "GGUF", 4);
    if (!status)
        status = append_u32(&start, 3);
    if (!status)
        status = append_u64(&start, w->n_tensors);
    if (!status)
        status = append_u64(&start, w->n_kv);
    const size_t header_bytes = start.size + w->keys.size + w->tensors.size;
    if (!status)
        status = preallocate(w, header_bytes);
    if (!status)
        status = qn_atomic_file_write(&w->file, start.data, start.size);
    if (!status)
        status = qn_atomic_file_write(&w->file, w->keys.data, w->keys.size);
    if (!status)
        status = qn_atomic_file_write(&w->file, w->tensors.data, w->tensors.size);
    if (!status)
        status = write_padding(w, header_bytes);
    free(start.data);
    w->header_written = !status;
    return status;
}

qn_status qn_gguf_writer_data(qn_gguf_writer *w, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    if (!w->header_written)
        return qn_fail(QN_ERR_INVALID, "%s: data come before qn_gguf_writer_begin_data", w->file.target);
    while (bytes > 0) {
        if (w->current == w->n_tensors)
            return qn_fail(QN_ERR_INVALID, "%s: %zu bytes more than its tensors have", w->file.target, bytes);
        const size_t size = w->tensor_bytes[w->current], left = size - w->written;
        const size_t now = bytes < left ? bytes : left;
        QN_TRY(qn_atomic_file_write(&w->file, at, now));
        at += now;
        bytes -= now;
        w->written += now;
        if (w->written == size) {
            QN_TRY(write_padding(w, size));
            w->current++;
            w->written = 0;
        }
    }
    return QN_OK;
}

qn_status qn_gguf_writer_finish(qn_gguf_writer *w)
{
    if (w->file.committed)
        return qn_fail(QN_ERR_INVALID, "%s: is finished already", w->file.target);
    if (!w->header_written || w->current != w->n_tensors)
        return qn_fail(QN_ERR_INVALID, "%s: %zu of its %llu tensors were written", w->file.target, w->current,
                       (unsigned long long)w->n_tensors);
    return qn_atomic_file_commit(&w->file);
}
