/* Access to an open file: entries, tensors, and values converted to C types with range checks. gguf_read.c has
 * checked that every value is inside the file. */
#include "gguf/file.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *qn_gguf_path(const qn_gguf *file)
{
    return file->path;
}

const char *qn_gguf_tensor_path(const qn_gguf *file, const qn_gguf_tensor *tensor)
{
    for (size_t i = 0; i < file->n_parts; i++) {
        const qn_gguf *part = file->parts[i];
        if (part && (uintptr_t)tensor->data - (uintptr_t)part->base < part->size)
            return part->path;
    }
    return file->path;
}

size_t qn_gguf_n_files(const qn_gguf *file)
{
    return file->parts ? file->n_parts : 1;
}

size_t qn_gguf_file_size(const qn_gguf *file)
{
    size_t size = file->size;
    for (size_t i = 1; i < file->n_parts; i++)
        size += file->parts[i]->size; /* no overflow: all files are mapped at the same time */
    return size;
}

size_t qn_gguf_alignment(const qn_gguf *file)
{
    return file->alignment;
}

const char *qn_gguf_q2_layout(const qn_gguf *file)
{
    return file->q2_layout;
}

size_t qn_gguf_n_kv(const qn_gguf *file)
{
    return file->n_kv;
}

const qn_gguf_kv *qn_gguf_kv_at(const qn_gguf *file, size_t index)
{
    return index < file->n_kv ? &file->kv[index] : NULL;
}

const qn_gguf_kv *qn_gguf_find(const qn_gguf *file, const char *key)
{
    return qn_name_table_find(&file->kv_table, key, strlen(key));
}

size_t qn_gguf_n_tensors(const qn_gguf *file)
{
    return file->n_tensors;
}

const qn_gguf_tensor *qn_gguf_tensor_at(const qn_gguf *file, size_t index)
{
    return index < file->n_tensors ? &file->tensors[index] : NULL;
}

const qn_gguf_tensor *qn_gguf_find_tensor(const qn_gguf *file, const char *name)
{
    return qn_name_table_find(&file->tensor_table, name, strlen(name));
}

bool qn_string_equals(qn_string s, const char *text)
{
    return strlen(text) == s.length && memcmp(s.data, text, s.length) == 0;
}

/* Loads an integer of any width; false for other types. A u64 above INT64_MAX becomes INT64_MAX, which no caller
 * accepts. */
static bool load_integer(qn_gguf_type type, const uint8_t *at, int64_t *value)
{
    uint64_t bits = 0;
    const size_t size = qn_gguf_type_size(type);
    memcpy(&bits, at, size);
    switch (type) {
    case QN_GGUF_U8:
    case QN_GGUF_U16:
    case QN_GGUF_U32: *value = (int64_t)bits; return true;
    case QN_GGUF_U64: *value = bits > INT64_MAX ? INT64_MAX : (int64_t)bits; return true;
    case QN_GGUF_I8: *value = (int8_t)bits; return true;
    case QN_GGUF_I16: *value = (int16_t)bits; return true;
    case QN_GGUF_I32: *value = (int32_t)bits; return true;
    case QN_GGUF_I64: *value = (int64_t)bits; return true;
    default: return false;
    }
}

static bool load_float(qn_gguf_type type, const uint8_t *at, double *value)
{
    float narrow;
    if (type == QN_GGUF_F32) {
        memcpy(&narrow, at, sizeof narrow);
        *value = (double)narrow;
        return true;
    }
    if (type != QN_GGUF_F64)
        return false;
    memcpy(value, at, sizeof *value);
    return true;
}

/* Returns the entry of a key, or NULL if it is missing: *status is then QN_ERR_FORMAT if it is required, else QN_OK. */
static const qn_gguf_kv *find_key(const qn_gguf *file, const char *key, bool required, const char *expected,
                                  qn_status *status)
{
    const qn_gguf_kv *kv = qn_gguf_find(file, key);
    *status = QN_OK;
    if (!kv && required)
        *status = qn_fail(QN_ERR_FORMAT, "%s: key '%s' is missing, expected %s", file->path, key, expected);
    return kv;
}

static qn_status wrong_type(const qn_gguf *file, const qn_gguf_kv *kv, const char *expected)
{
    return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s' is of type %s, expected %s", file->path, QN_STRING_ARGS(kv->key),
                   qn_gguf_type_name(kv->type), expected);
}

qn_status qn_gguf_get_u32(const qn_gguf *file, const char *key, bool required, uint32_t *out)
{
    qn_status status;
    const qn_gguf_kv *kv = find_key(file, key, required, "an integer", &status);
    int64_t value;
    if (!kv)
        return status;
    if (!load_integer(kv->type, kv->data, &value))
        return wrong_type(file, kv, "an integer");
    if (value < 0 || value > UINT32_MAX)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is %lld, expected 0 to %u", file->path, key, (long long)value,
                       UINT32_MAX);
    *out = (uint32_t)value;
    return QN_OK;
}

qn_status qn_gguf_get_f32(const qn_gguf *file, const char *key, bool required, float *out)
{
    qn_status status;
    const qn_gguf_kv *kv = find_key(file, key, required, "a float", &status);
    double value;
    if (!kv)
        return status;
    if (!load_float(kv->type, kv->data, &value))
        return wrong_type(file, kv, "a float");
    if (!(fabs(value) <= (double)FLT_MAX))
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is %g, expected a finite 32-bit float", file->path, key, value);
    *out = (float)value;
    return QN_OK;
}

qn_status qn_gguf_get_bool(const qn_gguf *file, const char *key, bool required, bool *out)
{
    qn_status status;
    const qn_gguf_kv *kv = find_key(file, key, required, "a bool", &status);
    if (!kv)
        return status;
    if (kv->type != QN_GGUF_BOOL)
        return wrong_type(file, kv, "bool");
    if (kv->data[0] > 1)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is a bool of value %u, expected 0 or 1", file->path, key,
                       kv->data[0]);
    *out = kv->data[0] == 1;
    return QN_OK;
}

qn_status qn_gguf_get_string(const qn_gguf *file, const char *key, bool required, qn_string *out)
{
    qn_status status;
    const qn_gguf_kv *kv = find_key(file, key, required, "a string", &status);
    if (!kv)
        return status;
    if (kv->type != QN_GGUF_STRING)
        return wrong_type(file, kv, "string");
    if (kv->string.length && memchr(kv->string.data, '\0', kv->string.length))
        return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is a string with a NUL character", file->path, key);
    *out = kv->string;
    return QN_OK;
}

qn_status qn_gguf_array_strings(const qn_gguf *file, const qn_gguf_kv *kv, qn_string **out)
{
    *out = NULL;
    if (kv->type != QN_GGUF_ARRAY || kv->element_type != QN_GGUF_STRING)
        return wrong_type(file, kv, "an array of strings");
    qn_string *strings = calloc(kv->count ? (size_t)kv->count : 1, sizeof *strings);
    if (!strings)
        return qn_fail(QN_ERR_MEMORY, "%s: key '%.*s': no memory for %llu strings", file->path, QN_STRING_ARGS(kv->key),
                       (unsigned long long)kv->count);
    const uint8_t *at = kv->data;
    for (uint64_t i = 0; i < kv->count; i++) {
        uint64_t length;
        memcpy(&length, at, sizeof length);
        strings[i] = (qn_string){ (const char *)at + sizeof length, (size_t)length };
        at += sizeof length + length;
    }
    *out = strings;
    return QN_OK;
}

/* Finds the address of element i of a numeric array. */
static qn_status element_at(const qn_gguf *file, const qn_gguf_kv *kv, uint64_t i, const char *expected,
                            const uint8_t **at)
{
    if (kv->type != QN_GGUF_ARRAY)
        return wrong_type(file, kv, expected);
    if (kv->element_type == QN_GGUF_STRING || kv->element_type == QN_GGUF_BOOL)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s' is an array of %s, expected %s", file->path,
                       QN_STRING_ARGS(kv->key), qn_gguf_type_name(kv->element_type), expected);
    if (i >= kv->count)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s' has %llu elements, expected more than %llu", file->path,
                       QN_STRING_ARGS(kv->key), (unsigned long long)kv->count, (unsigned long long)i);
    *at = kv->data + (size_t)i * qn_gguf_type_size(kv->element_type);
    return QN_OK;
}

qn_status qn_gguf_array_i32(const qn_gguf *file, const qn_gguf_kv *kv, uint64_t i, int32_t *out)
{
    const uint8_t *at = NULL;
    int64_t value;
    QN_TRY(element_at(file, kv, i, "an array of integers", &at));
    if (!load_integer(kv->element_type, at, &value))
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s' is an array of %s, expected an array of integers", file->path,
                       QN_STRING_ARGS(kv->key), qn_gguf_type_name(kv->element_type));
    if (value < INT32_MIN || value > INT32_MAX)
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s': element %llu is %lld, expected a 32-bit integer", file->path,
                       QN_STRING_ARGS(kv->key), (unsigned long long)i, (long long)value);
    *out = (int32_t)value;
    return QN_OK;
}

qn_status qn_gguf_array_f32(const qn_gguf *file, const qn_gguf_kv *kv, uint64_t i, float *out)
{
    const uint8_t *at = NULL;
    int64_t integer;
    double value;
    QN_TRY(element_at(file, kv, i, "an array of numbers", &at));
    if (load_integer(kv->element_type, at, &integer))
        value = (double)integer;
    else
        load_float(kv->element_type, at, &value);
    if (!(fabs(value) <= (double)FLT_MAX))
        return qn_fail(QN_ERR_FORMAT, "%s: key '%.*s': element %llu is %g, expected a finite 32-bit float", file->path,
                       QN_STRING_ARGS(kv->key), (unsigned long long)i, value);
    *out = (float)value;
    return QN_OK;
}
