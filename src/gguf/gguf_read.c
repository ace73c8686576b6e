/* Opens one GGUF file: reads the header, maps the tensors' data, and validates the whole structure, so that
 * gguf_get.c and users of tensor data need no bounds checks. Split models are in gguf_split.c. The format is
 * specified in ggml's docs/gguf.md. */
#include "gguf/file.h"

#include "base/address_space.h"
#include "base/file.h"
#include "base/memory.h"
#include "gguf/lfs.h"
#include "quant/q2_layout.h"
#include "quant/quant.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read without byte swapping");

enum { HEADER_BYTES = 24, MAX_ALIGNMENT = 1 << 20, HEADER_STEP = 256 << 10 };
_Static_assert(QN_COMMIT_GRANULE % HEADER_STEP == 0, "a granule is read in whole steps");

/* The unread part of the file. Counts in the file are compared with `left` before memory is allocated for them. */
struct cursor {
    qn_gguf *file;
    int fd; /* -1: the whole header is loaded */
    const uint8_t *at;
    size_t left;
    qn_status failure; /* of reading the file, as opposed to a file that is too short */
    int failure_errno;
};

/* Makes room for HEADER_STEP bytes of the header. It uses small pages, since few headers fill a huge one. */
static qn_status grow_header(const qn_gguf *file)
{
    uint8_t *at = file->header_memory + file->header_read;
    if (file->header_read % QN_COMMIT_GRANULE)
        return QN_OK;
    QN_TRY(qn_address_space_commit(at));
    qn_advise_small(at, QN_COMMIT_GRANULE);
    return QN_OK;
}

/* Reads the header up to `end`. */
static bool load_header(struct cursor *c, size_t end)
{
    qn_gguf *file = c->file;
    if (c->fd >= 0 && end > file->header_reserved)
        c->failure = QN_ERR_UNSUPPORTED;
    while (c->fd >= 0 && file->header_read < end && !c->failure) {
        const size_t at = file->header_read, left = file->size - at, step = HEADER_STEP - at % HEADER_STEP;
        c->failure = grow_header(file);
        if (c->failure)
            break;
        const ptrdiff_t n = qn_file_read_at(c->fd, file->header_memory + at, step < left ? step : left, at);
        if (n > 0) {
            file->header_read += (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            c->failure = QN_ERR_IO;
            c->failure_errno = n < 0 ? errno : 0;
        }
    }
    return !c->failure;
}

static const uint8_t *cursor_read(struct cursor *c, size_t bytes)
{
    const uint8_t *at = c->at;
    if (bytes > c->left || !load_header(c, (size_t)(at - c->file->header) + bytes))
        return NULL;
    c->at += bytes;
    c->left -= bytes;
    return at;
}

static bool cursor_read_u32(struct cursor *c, uint32_t *value)
{
    const uint8_t *at = cursor_read(c, sizeof *value);
    if (at)
        memcpy(value, at, sizeof *value);
    return at != NULL;
}

static bool cursor_read_u64(struct cursor *c, uint64_t *value)
{
    const uint8_t *at = cursor_read(c, sizeof *value);
    if (at)
        memcpy(value, at, sizeof *value);
    return at != NULL;
}

static bool cursor_read_string(struct cursor *c, qn_string *s)
{
    uint64_t length;
    if (!cursor_read_u64(c, &length) || length > c->left)
        return false;
    s->length = (size_t)length;
    s->data = (const char *)cursor_read(c, s->length);
    return s->data != NULL;
}

/* Whether a name contains a NUL. Names are compared with C strings and printed as such, so it could be taken for
 * another name. */
static bool has_nul(qn_string s)
{
    return s.length && memchr(s.data, '\0', s.length);
}

static qn_status read_header(const qn_gguf *file, struct cursor *c, uint64_t *n_tensors, uint64_t *n_kv)
{
    const size_t n_magic = file->size < 4 ? file->size : 4;
    const uint8_t *magic = cursor_read(c, n_magic);
    if (magic && n_magic == 4 && memcmp(magic, QN_LFS_POINTER, 4) == 0 && cursor_read(c, QN_LFS_POINTER_BYTES - 4))
        QN_TRY(qn_refuse_lfs_pointer(file->path, magic));
    if (!magic || n_magic < 4 || memcmp(magic, "GGUF", 4) != 0)
        return qn_fail(QN_ERR_FORMAT, "%s: not a GGUF file: begins with '%.*s', expected 'GGUF'", file->path,
                       magic ? (int)n_magic : 0, magic ? (const char *)magic : "");
    if (file->size < HEADER_BYTES)
        return qn_fail(QN_ERR_FORMAT, "%s: %zu bytes are too few for a GGUF header of %d", file->path, file->size,
                       HEADER_BYTES);
    uint32_t version;
    if (!cursor_read_u32(c, &version) || !cursor_read_u64(c, n_tensors) || !cursor_read_u64(c, n_kv))
        return qn_fail(QN_ERR_FORMAT, "%s: the file ends inside its header", file->path);
    if (version != 0 && (version & 0xffff) == 0)
        return qn_fail(QN_ERR_FORMAT, "%s: a big-endian GGUF file, expected little-endian", file->path);
    if (version != 2 && version != 3) /* little-endian versions 2 and 3 are identical; version 1 has 32-bit counts */
        return qn_fail(QN_ERR_FORMAT, "%s: GGUF version %u, expected 2 or 3", file->path, version);
    const size_t min_kv_bytes = 8 + 4 + 1, min_tensor_bytes = 8 + 4 + 8 + 4 + 8;
    if (*n_kv > c->left / min_kv_bytes)
        return qn_fail(QN_ERR_FORMAT, "%s: %llu keys do not fit in %zu bytes", file->path, (unsigned long long)*n_kv,
                       c->left);
    if (*n_tensors > c->left / min_tensor_bytes)
        return qn_fail(QN_ERR_FORMAT, "%s: the headers of %llu tensors do not fit in %zu bytes", file->path,
                       (unsigned long long)*n_tensors, c->left);
    return QN_OK;
}

static qn_status read_array(const qn_gguf *file, struct cursor *c, qn_gguf_kv *kv)
{
    uint32_t type;
    if (!cursor_read_u32(c, &type) || !cursor_read_u64(c, &kv->count))
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s': the file ends inside its array's header", file->path,
                       QN_STRING_ARGS(kv->key));
    if (type == QN_GGUF_ARRAY)
        return qn_fail(QN_ERR_UNSUPPORTED,
                       "%s: key '%.*s': an array of arrays, expected an array of scalars or strings", file->path,
                       QN_STRING_ARGS(kv->key));
    if (type > QN_GGUF_F64)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s': an array of unknown type %u", file->path,
                       QN_STRING_ARGS(kv->key), type);
    kv->element_type = (qn_gguf_type)type;
    kv->data = c->at;
    const size_t min_bytes = type == QN_GGUF_STRING ? 8 : qn_gguf_type_size(type);
    if (kv->count > c->left / min_bytes)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s': an array of %llu elements (%s) does not fit the %zu bytes left",
                       file->path, QN_STRING_ARGS(kv->key), (unsigned long long)kv->count, qn_gguf_type_name(type),
                       c->left);
    if (type != QN_GGUF_STRING && !cursor_read(c, (size_t)kv->count * min_bytes))
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s': the file ends inside its array", file->path,
                       QN_STRING_ARGS(kv->key));
    for (uint64_t i = 0; type == QN_GGUF_STRING && i < kv->count; i++) {
        qn_string s;
        if (!cursor_read_string(c, &s))
            return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s': string %llu of %llu extends past the end of the file",
                           file->path, QN_STRING_ARGS(kv->key), (unsigned long long)i, (unsigned long long)kv->count);
    }
    kv->bytes = (size_t)(c->at - kv->data);
    return QN_OK;
}

static qn_status read_kv(const qn_gguf *file, struct cursor *c, uint64_t index, uint64_t n_kv, qn_gguf_kv *kv)
{
    uint32_t type;
    *kv = (qn_gguf_kv){ 0 };
    if (!cursor_read_string(c, &kv->key) || !cursor_read_u32(c, &type))
        return qn_fail(QN_ERR_FORMAT, "%s: key %llu of %llu extends past the end of the file", file->path,
                       (unsigned long long)index, (unsigned long long)n_kv);
    if (has_nul(kv->key))
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s' has a NUL character", file->path, QN_STRING_ARGS(kv->key));
    if (type > QN_GGUF_F64)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s': unknown value type %u", file->path, QN_STRING_ARGS(kv->key),
                       type);
    kv->type = (qn_gguf_type)type;
    if (type == QN_GGUF_ARRAY)
        return read_array(file, c, kv);
    kv->data = c->at;
    const bool inside =
        type == QN_GGUF_STRING ? cursor_read_string(c, &kv->string) : cursor_read(c, qn_gguf_type_size(type)) != NULL;
    if (!inside)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s': its value (%s) extends past the end of the file", file->path,
                       QN_STRING_ARGS(kv->key), qn_gguf_type_name(type));
    kv->bytes = (size_t)(c->at - kv->data);
    return QN_OK;
}

/* Reads the header of a tensor. For type 42, `bytes` stays 0: locate_tensors sets it from the offset of the next
 * tensor. */
static qn_status read_tensor(const qn_gguf *file, struct cursor *c, uint64_t index, uint64_t n_tensors,
                             qn_gguf_tensor *t)
{
    *t = (qn_gguf_tensor){ 0 };
    if (!cursor_read_string(c, &t->name) || !cursor_read_u32(c, &t->n_dims))
        return qn_fail(QN_ERR_FORMAT, "%s: the header of tensor %llu of %llu extends past the end of the file",
                       file->path, (unsigned long long)index, (unsigned long long)n_tensors);
    if (has_nul(t->name))
        return qn_fail(QN_ERR_FORMAT, "%s: the name of tensor '%.*s' has a NUL character", file->path,
                       QN_STRING_ARGS(t->name));
    if (t->n_dims < 1 || t->n_dims > QN_GGUF_MAX_DIMS)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s' has %u dimensions, expected 1 to %d", file->path,
                       QN_STRING_ARGS(t->name), t->n_dims, QN_GGUF_MAX_DIMS);
    size_t n_weights = 1, rows = 1;
    for (uint32_t d = 0; d < QN_GGUF_MAX_DIMS; d++) {
        t->dims[d] = 1;
        if (d < t->n_dims && !cursor_read_u64(c, &t->dims[d]))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s': the file ends inside its dimensions", file->path,
                           QN_STRING_ARGS(t->name));
        if (t->dims[d] == 0)
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s': dimension %u is 0", file->path, QN_STRING_ARGS(t->name),
                           d);
        if (!qn_mul_size(n_weights, t->dims[d], &n_weights) || n_weights > INT64_MAX)
            return qn_fail(QN_ERR_FORMAT,
                           "%s: tensor '%.*s': the product of its dimensions overflows at dimension %u, %llu",
                           file->path, QN_STRING_ARGS(t->name), d, (unsigned long long)t->dims[d]);
        rows *= d > 0 ? t->dims[d] : 1;
    }
    if (!cursor_read_u32(c, &t->type) || !cursor_read_u64(c, &t->offset))
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s': the file ends inside its header", file->path,
                       QN_STRING_ARGS(t->name));
    const qn_type_info *info = qn_type_find_stored(t->type);
    if (!info)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%.*s' has type number %u, which is not supported", file->path,
                       QN_STRING_ARGS(t->name), t->type);
    t->stored_type = t->type;
    if (t->type == QN_TYPE_Q2_0)
        return QN_OK;
    if (t->dims[0] % info->block_weights != 0)
        return qn_fail(
            QN_ERR_FORMAT, "%s: tensor '%.*s': the row length %llu is not a multiple of the block size %zu (%s)",
            file->path, QN_STRING_ARGS(t->name), (unsigned long long)t->dims[0], info->block_weights, info->name);
    size_t row_bytes;
    if (!qn_row_bytes(info, t->dims[0], &row_bytes) || !qn_mul_size(row_bytes, rows, &t->bytes))
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s': its size in bytes overflows", file->path,
                       QN_STRING_ARGS(t->name));
    return QN_OK;
}

static qn_status read_alignment(qn_gguf *file)
{
    uint32_t alignment = QN_GGUF_DEFAULT_ALIGNMENT;
    QN_TRY(qn_gguf_get_u32(file, "general.alignment", false, &alignment));
    if (alignment < 8 || alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0)
        return qn_fail(QN_ERR_FORMAT, "%s: general.alignment is %u, expected a power of two from 8 to %d", file->path,
                       alignment, MAX_ALIGNMENT);
    file->alignment = alignment;
    return QN_OK;
}

static int by_offset(const void *a, const void *b)
{
    const qn_gguf_tensor *const *left = a, *const *right = b;
    return (*left)->offset < (*right)->offset ? -1 : (*left)->offset > (*right)->offset;
}

/* Sets the data pointer of a tensor. Checks that its data is aligned, inside the data section, and ends before that
 * of `next`, the tensor with the next offset. */
static qn_status locate_tensor(const qn_gguf *file, const uint8_t *data, size_t data_bytes, qn_gguf_tensor *t,
                               const qn_gguf_tensor *next)
{
    if (t->offset % file->alignment != 0)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s': offset %llu is not a multiple of the alignment %zu",
                       file->path, QN_STRING_ARGS(t->name), (unsigned long long)t->offset, file->alignment);
    if (t->offset >= data_bytes || t->bytes > data_bytes - t->offset)
        return qn_fail(QN_ERR_FORMAT,
                       "%s: tensor '%.*s': %zu bytes at offset %llu extend past the end of the data, %zu bytes",
                       file->path, QN_STRING_ARGS(t->name), t->bytes, (unsigned long long)t->offset, data_bytes);
    t->data = data + t->offset;
    const size_t available_bytes =
        (size_t)((next && next->offset < data_bytes ? next->offset : data_bytes) - t->offset);
    if (t->bytes > available_bytes || available_bytes == 0)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s' at offset %llu overlaps '%.*s' at offset %llu", file->path,
                       QN_STRING_ARGS(t->name), (unsigned long long)t->offset, QN_STRING_ARGS(next->name),
                       (unsigned long long)next->offset);
    if (t->type == QN_TYPE_Q2_0)
        t->bytes = available_bytes;
    return QN_OK;
}

static qn_status locate_tensors(qn_gguf *file, size_t header_end)
{
    if (file->n_tensors == 0)
        return QN_OK;
    const size_t data_start = qn_round_up(header_end, file->alignment);
    if (data_start >= file->size)
        return qn_fail(QN_ERR_FORMAT, "%s: the tensors' data begin at byte %zu of a file of %zu", file->path,
                       data_start, file->size);
    qn_gguf_tensor **sorted;
    QN_TRY(qn_alloc(&sorted, file->n_tensors, sizeof *sorted, "order of tensors"));
    for (size_t i = 0; i < file->n_tensors; i++)
        sorted[i] = &file->tensors[i];
    qsort(sorted, file->n_tensors, sizeof *sorted, by_offset);
    qn_status status = QN_OK;
    for (size_t i = 0; !status && i < file->n_tensors; i++)
        status = locate_tensor(file, file->base + data_start, file->size - data_start, sorted[i],
                               i + 1 < file->n_tensors ? sorted[i + 1] : NULL);
    qn_free(sorted);
    return status;
}

static qn_status read_structure(qn_gguf *file, struct cursor *c)
{
    uint64_t n_tensors = 0, n_kv = 0;
    size_t duplicate = 0;
    QN_TRY(read_header(file, c, &n_tensors, &n_kv));
    for (; file->n_kv < n_kv; file->n_kv++) { /* memory grows with the entries read, not with the count in the file */
        QN_TRY(qn_realloc_array(&file->kv, &file->kv_capacity, file->n_kv + 1, sizeof *file->kv, "keys"));
        QN_TRY(read_kv(file, c, file->n_kv, n_kv, &file->kv[file->n_kv]));
    }
    QN_TRY(qn_name_table_build(&file->kv_table, file->kv, file->n_kv, sizeof *file->kv, &duplicate));
    if (duplicate < file->n_kv)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s' appears twice", file->path,
                       QN_STRING_ARGS(file->kv[duplicate].key));
    QN_TRY(read_alignment(file));
    for (; file->n_tensors < n_tensors; file->n_tensors++) {
        QN_TRY(qn_realloc_array(&file->tensors, &file->tensors_capacity, file->n_tensors + 1, sizeof *file->tensors,
                                "tensors"));
        QN_TRY(read_tensor(file, c, file->n_tensors, n_tensors, &file->tensors[file->n_tensors]));
    }
    QN_TRY(qn_name_table_build(&file->tensor_table, file->tensors, file->n_tensors, sizeof *file->tensors, &duplicate));
    if (duplicate < file->n_tensors)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s' appears twice", file->path,
                       QN_STRING_ARGS(file->tensors[duplicate].name));
    return locate_tensors(file, (size_t)(c->at - file->header));
}

static qn_status read_file(qn_gguf *file, int fd)
{
    struct cursor c = { .file = file, .fd = fd, .at = file->header, .left = file->size };
    const qn_status status = read_structure(file, &c);
    if (c.failure == QN_ERR_UNSUPPORTED)
        return qn_fail(c.failure, "%s: its keys and the headers of its tensors take more than %d MiB", file->path,
                       QN_GGUF_MAX_HEADER >> 20);
    if (c.failure == QN_ERR_MEMORY)
        return qn_fail(c.failure, "%s: no memory for its keys and the headers of its tensors", file->path);
    if (c.failure && c.failure_errno)
        return qn_fail(c.failure, "%s: cannot read: %s", file->path, strerror(c.failure_errno));
    if (c.failure)
        return qn_fail(c.failure, "%s: was cut at byte %zu while it was read", file->path, file->header_read);
    return status;
}

/* Lists the tensors of type 42. *alignment: the largest alignment of the model's files. */
static size_t list_type_42(const qn_gguf *file, qn_q2_tensor *q2, size_t *alignment)
{
    size_t n = 0;
    *alignment = file->alignment;
    for (size_t i = 1; i < file->n_parts; i++)
        if (file->parts[i]->alignment > *alignment)
            *alignment = file->parts[i]->alignment;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const qn_gguf_tensor *t = &file->tensors[i];
        if (t->type == QN_TYPE_Q2_0)
            q2[n++] = (qn_q2_tensor){ .name = t->name.data,
                                      .name_length = t->name.length,
                                      .data = t->data,
                                      .available_bytes = t->bytes,
                                      .width = t->dims[0],
                                      .n_weights = t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3] };
    }
    return n;
}

/* Sets the type and size of a tensor of type 42. */
static qn_status give_layout(const qn_gguf *file, const qn_q2_tensor *q, const qn_type_info *info, qn_gguf_tensor *t)
{
    t->type = (uint32_t)info->type;
    t->bytes = (size_t)(q->n_weights / info->block_weights) * info->block_bytes;
    if (q->width % info->block_weights || t->bytes > q->available_bytes)
        return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s' of type 42: %zu bytes as %s do not fit in the %zu available",
                       qn_gguf_tensor_path(file, t), QN_STRING_ARGS(t->name), t->bytes, info->name, q->available_bytes);
    return QN_OK;
}

qn_status qn_gguf_settle_type_42(qn_gguf *file)
{
    qn_q2_tensor *q2;
    qn_type type;
    size_t alignment;
    QN_TRY(qn_alloc(&q2, file->n_tensors, sizeof *q2, "tensors of type 42"));
    const size_t n = list_type_42(file, q2, &alignment);
    qn_status status = n ? qn_q2_find_layout(q2, n, alignment, file->path, &type, &file->q2_layout) : QN_OK;
    for (size_t i = 0, k = 0; !status && k < n; i++)
        if (file->tensors[i].type == QN_TYPE_Q2_0)
            status = give_layout(file, &q2[k++], qn_type_find((uint32_t)type), &file->tensors[i]);
    qn_free(q2);
    return status;
}

/* Determines the layout of the tensors of type 42; closes the file on failure. */
static qn_status find_q2_layout_or_close(qn_gguf **file)
{
    qn_status status = qn_gguf_settle_type_42(*file);
    if (!status)
        status = qn_gguf_check_unchanged(*file);
    if (status) {
        qn_gguf_close(*file);
        *file = NULL;
    }
    return status;
}

static qn_status new_file(const char *path, size_t size, qn_gguf **out)
{
    qn_gguf *file = *out = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        free(file);
        *out = NULL;
        return qn_fail(QN_ERR_MEMORY, "%s: no memory to open it", path);
    }
    file->size = size;
    return QN_OK;
}

qn_status qn_gguf_open_memory(const void *data, size_t size, const char *name, qn_gguf **out)
{
    QN_TRY(new_file(name, size, out));
    (*out)->base = (*out)->header = data;
    const qn_status status = read_file(*out, -1);
    if (!status)
        return find_q2_layout_or_close(out);
    qn_gguf_close(*out);
    *out = NULL;
    return status;
}

qn_status qn_gguf_open_alone(const char *path, qn_gguf **out)
{
    QN_TRY(qn_gguf_map(path, out));
    return find_q2_layout_or_close(out);
}

/* Maps the data and reads the header. Uses huge pages if the file system supports them: reads of 2 MiB, fewer TLB
 * misses. Does not prefetch the file, because a caller that reads only the header must not wait for the weights. */
static qn_status read_open(qn_gguf *file, int fd)
{
    void *memory;
    const size_t most = file->size < QN_GGUF_MAX_HEADER ? file->size : QN_GGUF_MAX_HEADER;
    QN_TRY(qn_mapping_create(file->path, fd, file->size, &file->mapping));
    file->base = qn_mapping_data(file->mapping);
    qn_advise_huge((void *)(uintptr_t)file->base, file->size);
    file->header_reserved = qn_round_up(most, QN_COMMIT_GRANULE);
    QN_TRY(qn_address_space_reserve(file->header_reserved, &memory));
    file->header = file->header_memory = memory;
    return read_file(file, fd);
}

static qn_status check_regular(const char *path, int fd, qn_file_info *info)
{
    if (!qn_file_describe_fd(fd, info))
        return qn_fail(QN_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    if (info->kind != QN_FILE_REGULAR)
        return qn_fail(QN_ERR_IO, "%s: is %s, expected a regular file", path,
                       info->kind == QN_FILE_FOLDER ? "a directory" : "a device or pipe");
    return info->size == 0 ? qn_fail(QN_ERR_IO, "%s: the file is empty", path) : QN_OK;
}

qn_status qn_gguf_map(const char *path, qn_gguf **out)
{
    qn_file_info info;
    *out = NULL;
    const int fd = qn_file_open_read(path);
    if (fd < 0)
        return qn_fail(QN_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    qn_status status = check_regular(path, fd, &info);
    if (!status)
        status = new_file(path, (size_t)info.size, out);
    if (!status) {
        (*out)->identity = info.identity;
        status = read_open(*out, fd);
    }
    close(fd);
    if (status) {
        qn_gguf_close(*out);
        *out = NULL;
    }
    return status;
}

/* ---- Changes ---- */

/* Checks that the file was not cut. The error text names it without its folders, since clients of a server read it. */
static qn_status check_whole(const qn_gguf *file)
{
    return file->mapping && qn_mapping_is_lost(file->mapping)
               ? qn_fail(QN_ERR_IO, "%s: was cut, or cannot be read any more, while it was in use",
                         qn_file_name(file->path))
               : QN_OK;
}

static qn_status check_unchanged(const qn_gguf *file)
{
    qn_file_info info;
    QN_TRY(check_whole(file));
    if (!file->mapping)
        return QN_OK;
    if (!qn_file_describe(file->path, &info))
        return qn_fail(QN_ERR_IO, "%s: went away while it was read: %s", file->path, strerror(errno));
    return qn_file_identity_equal(&info.identity, &file->identity)
               ? QN_OK
               : qn_fail(QN_ERR_IO, "%s: was changed or replaced while it was read", file->path);
}

/* Checks each file of the model. */
static qn_status check_files(const qn_gguf *file, qn_status (*check)(const qn_gguf *file))
{
    QN_TRY(check(file));
    for (size_t i = 0; i < file->n_parts; i++)
        if (file->parts[i] && file->parts[i] != file)
            QN_TRY(check(file->parts[i]));
    return QN_OK;
}

qn_status qn_gguf_check_whole(const qn_gguf *file)
{
    return check_files(file, check_whole);
}

qn_status qn_gguf_check_unchanged(const qn_gguf *file)
{
    return check_files(file, check_unchanged);
}

void qn_gguf_drop_pages(const qn_gguf *file, const qn_gguf_tensor *tensor)
{
    if (file->mapping)
        qn_mapping_drop(tensor->data, tensor->bytes);
}

void qn_gguf_close(qn_gguf *file)
{
    if (!file)
        return;
    for (size_t i = 1; i < file->n_parts; i++)
        qn_gguf_close(file->parts[i]);
    qn_free(file->parts);
    qn_mapping_free(file->mapping);
    qn_address_space_free(file->header_memory, file->header_reserved);
    qn_free(file->kv_table.slots);
    qn_free(file->tensor_table.slots);
    free(file->kv);
    free(file->tensors);
    free(file->path);
    free(file);
}
