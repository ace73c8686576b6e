/* The reader of safetensors files. Format: https://github.com/huggingface/safetensors#format. */
#include "gguf/safetensors.h"

#include "base/file.h"
#include "base/memory.h"
#include "gguf/json.h"
#include "gguf/lfs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct qn_safetensors {
    char *path;
    int fd;
    qn_file_identity identity;
    json_t *header; /* owns the names */
    uint64_t data_at, data_bytes;
    qn_safetensor *tensors;
    size_t n_tensors;
};

static const struct {
    const char *name;
    unsigned bytes;
} dtypes[] = {
    { "F64", 8 }, { "F32", 4 },  { "F16", 2 },     { "BF16", 2 },    { "I64", 8 }, { "I32", 4 },
    { "I16", 2 }, { "I8", 1 },   { "U64", 8 },     { "U32", 4 },     { "U16", 2 }, { "U8", 1 },
    { "C64", 8 }, { "BOOL", 1 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 },
};

static qn_status read_dtype(const char *path, const json_t *entry, qn_safetensor *t, unsigned *bytes)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s' has no dtype", path, t->name);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtype, dtypes[i].name) == 0) {
            t->dtype = dtypes[i].name;
            *bytes = dtypes[i].bytes;
            return QN_OK;
        }
    return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s' has the unknown dtype '%.16s'", path, t->name, dtype);
}

static qn_status read_shape(const char *path, const json_t *entry, qn_safetensor *t)
{
    const json_t *shape = json_object_get(entry, "shape");
    const size_t n = json_array_size(shape);
    if (!json_is_array(shape) || n > QN_SAFETENSORS_MAX_DIMS)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s': its shape is not an array of at most %d dimensions", path,
                       t->name, QN_SAFETENSORS_MAX_DIMS);
    t->n_dims = (uint32_t)n;
    for (size_t d = 0; d < QN_SAFETENSORS_MAX_DIMS; d++) {
        const json_t *dim = json_array_get(shape, d);
        if (d < n && (!json_is_integer(dim) || json_integer_value(dim) < 0))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s': dimension %zu is not a non-negative integer", path,
                           t->name, d);
        t->dims[d] = d < n ? (uint64_t)json_integer_value(dim) : 1;
    }
    return QN_OK;
}

static qn_status read_range(const qn_safetensors *file, const json_t *entry, qn_safetensor *t, uint64_t *end)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s': data_offsets are not two ascending integers", file->path,
                       t->name);
    t->begin = (uint64_t)json_integer_value(first);
    *end = (uint64_t)json_integer_value(last);
    if (*end > file->data_bytes)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s' ends at byte %llu of %llu bytes of data", file->path, t->name,
                       (unsigned long long)*end, (unsigned long long)file->data_bytes);
    return QN_OK;
}

static qn_status read_tensor(const qn_safetensors *file, const char *name, const json_t *entry, qn_safetensor *t)
{
    unsigned bytes = 0;
    uint64_t end = 0;
    t->name = name;
    if (!json_is_object(entry))
        return qn_fail(QN_ERR_FORMAT, "%s: the entry of tensor '%.80s' is not an object", file->path, name);
    QN_TRY(read_dtype(file->path, entry, t, &bytes));
    QN_TRY(read_shape(file->path, entry, t));
    QN_TRY(read_range(file, entry, t, &end));
    t->bytes = bytes;
    for (uint32_t d = 0; d < t->n_dims; d++)
        if (__builtin_mul_overflow(t->bytes, t->dims[d], &t->bytes))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s': the size of its shape overflows", file->path, name);
    if (t->bytes != end - t->begin)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s': its shape takes %llu bytes, data_offsets %llu", file->path,
                       name, (unsigned long long)t->bytes, (unsigned long long)(end - t->begin));
    return QN_OK;
}

static int compare_ranges(const void *left, const void *right)
{
    const qn_safetensor *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static qn_status check_ranges(qn_safetensors *file)
{
    uint64_t end = 0;
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, compare_ranges);
    for (size_t i = 0; i < file->n_tensors; i++) {
        const qn_safetensor *t = &file->tensors[i];
        if (t->begin != end)
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s' begins at byte %llu of the data, expected %llu (%s)",
                           file->path, t->name, (unsigned long long)t->begin, (unsigned long long)end,
                           t->begin < end ? "ranges overlap" : "a gap");
        end += t->bytes;
    }
    if (end != file->data_bytes)
        return qn_fail(QN_ERR_FORMAT, "%s: the tensors take %llu bytes, the file has %llu bytes of data", file->path,
                       (unsigned long long)end, (unsigned long long)file->data_bytes);
    return QN_OK;
}

static qn_status read_tensors(qn_safetensors *file)
{
    const char *name;
    json_t *entry;
    QN_TRY(qn_alloc(&file->tensors, json_object_size(file->header), sizeof *file->tensors, "tensors of a checkpoint"));
    json_object_foreach(file->header, name, entry)
    {
        if (strcmp(name, "__metadata__") != 0)
            QN_TRY(read_tensor(file, name, entry, &file->tensors[file->n_tensors++]));
    }
    return check_ranges(file);
}

static int read_bytes(int fd, uint64_t at, void *out, size_t size)
{
    uint8_t *to = out;
    while (size > 0) {
        const ptrdiff_t n = qn_file_read_at(fd, to, size, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : ENODATA;
        to += n;
        at += (uint64_t)n;
        size -= (size_t)n;
    }
    return 0;
}

static qn_status check_not_pointer(const qn_safetensors *file, uint64_t size)
{
    uint8_t begin[QN_LFS_POINTER_BYTES];
    if (size < sizeof begin || read_bytes(file->fd, 0, begin, sizeof begin))
        return QN_OK;
    return qn_refuse_lfs_pointer(file->path, begin);
}

static qn_status read_header(qn_safetensors *file)
{
    qn_file_info info;
    uint8_t prefix[8];
    uint64_t size = 0;
    if (!qn_file_describe_fd(file->fd, &info))
        return qn_fail(QN_ERR_IO, "%s: %s", file->path, strerror(errno));
    if (info.kind != QN_FILE_REGULAR)
        return qn_fail(QN_ERR_IO, "%s: is not a regular file", file->path);
    file->identity = info.identity;
    if (info.size < sizeof prefix)
        return qn_fail(QN_ERR_FORMAT, "%s: has %lld bytes, a safetensors file has 10 at least", file->path,
                       (long long)info.size);
    QN_TRY(check_not_pointer(file, info.size));
    int error = read_bytes(file->fd, 0, prefix, sizeof prefix);
    if (error)
        return qn_fail(QN_ERR_IO, "%s: %s", file->path, strerror(error));
    for (size_t i = 0; i < sizeof prefix; i++)
        size |= (uint64_t)prefix[i] << 8 * i;
    if (size > QN_SAFETENSORS_MAX_HEADER || size > info.size - sizeof prefix)
        return qn_fail(QN_ERR_FORMAT, "%s: a header of %llu bytes in a file of %lld, at most %d are allowed",
                       file->path, (unsigned long long)size, (long long)info.size, QN_SAFETENSORS_MAX_HEADER);
    file->data_at = sizeof prefix + size;
    file->data_bytes = info.size - file->data_at;
    char *text;
    QN_TRY(qn_alloc(&text, (size_t)size, 1, "header of a checkpoint"));
    error = read_bytes(file->fd, sizeof prefix, text, (size_t)size);
    const qn_status status = error ? qn_fail(QN_ERR_IO, "%s: %s", file->path, strerror(error))
                                   : qn_json_parse(file->path, text, (size_t)size, &file->header);
    qn_free(text);
    return status;
}

qn_status qn_safetensors_open(const char *path, qn_safetensors **out)
{
    qn_safetensors *file;
    *out = NULL;
    QN_TRY(qn_alloc(&file, 1, sizeof *file, "checkpoint file"));
    file->fd = qn_file_open_read(path);
    qn_status status = file->fd < 0 ? qn_fail(QN_ERR_IO, "%s: %s", path, strerror(errno)) : QN_OK;
    file->path = strdup(path);
    if (!status && !file->path)
        status = qn_fail(QN_ERR_MEMORY, "%s: no memory", path);
    if (!status)
        status = read_header(file);
    if (!status)
        status = read_tensors(file);
    if (status) {
        qn_safetensors_close(file);
        return status;
    }
    *out = file;
    return QN_OK;
}

void qn_safetensors_close(qn_safetensors *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    json_decref(file->header);
    qn_free(file->tensors);
    free(file->path);
    qn_free(file);
}

qn_status qn_safetensors_check_unchanged(const qn_safetensors *file)
{
    qn_file_info info;
    if (!qn_file_describe_fd(file->fd, &info))
        return qn_fail(QN_ERR_IO, "%s: %s", file->path, strerror(errno));
    return qn_file_identity_equal(&info.identity, &file->identity)
               ? QN_OK
               : qn_fail(QN_ERR_IO, "%s: was changed while it was read", file->path);
}

uint64_t qn_safetensors_header_bytes(const qn_safetensors *file)
{
    return file->data_at - 8;
}

const char *qn_safetensors_path(const qn_safetensors *file)
{
    return file->path;
}

size_t qn_safetensors_count(const qn_safetensors *file)
{
    return file->n_tensors;
}

const qn_safetensor *qn_safetensors_at(const qn_safetensors *file, size_t i)
{
    return &file->tensors[i];
}

int qn_safetensors_read(const qn_safetensors *file, const qn_safetensor *tensor, uint64_t at, void *out, size_t size)
{
    return read_bytes(file->fd, file->data_at + tensor->begin + at, out, size);
}

void qn_safetensors_prefetch(const qn_safetensors *file, const qn_safetensor *tensor, uint64_t at, uint64_t size)
{
    if (at >= tensor->bytes)
        return;
    const uint64_t left = tensor->bytes - at;
    qn_file_prefetch(file->fd, file->data_at + tensor->begin + at, size < left ? size : left);
}
