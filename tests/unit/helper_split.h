/* Writes the files of a split model, valid or with faults, from a single GGUF file. */
#ifndef QN_TESTS_HELPER_SPLIT_H
#define QN_TESTS_HELPER_SPLIT_H

#include "helper_image.h"
#include "helper_files.h"

#include "base/append.h"

#include <stdio.h>

/* The split keys and contents of a file; ABSENT omits a key. */
enum { ABSENT = -1 };

struct part {
    int64_t no, count, n_tensors;
    bool has_keys;        /* has the model's keys */
    size_t begin, end;    /* the tensors in the file: begin to end - 1 */
    const char *poisoned; /* the first bytes of this tensor become a NaN in bf16, f16 and f32 */
};

/* Writes a number with gguf-split's value type; a number out of its range is written as u32. */
static void put_number(const char *key, int64_t value, uint32_t type)
{
    if (value == ABSENT)
        return;
    const bool wide = type == QN_GGUF_U16 && value > UINT16_MAX;
    put_key(key, wide ? QN_GGUF_U32 : type);
    put(&value, type == QN_GGUF_U16 && !wide ? 2 : 4);
}

static void put_kv(const qn_gguf_kv *kv)
{
    put64(kv->key.length);
    put(kv->key.data, kv->key.length);
    put32(kv->type);
    if (kv->type == QN_GGUF_ARRAY) {
        put32(kv->element_type);
        put64(kv->count);
    }
    put(kv->data, kv->bytes);
}

static void write_part(const qn_gguf *whole, const struct part *part, const char *path)
{
    const size_t n_kv = part->has_keys ? qn_gguf_n_kv(whole) : 0;
    put_header(3, part->end - part->begin,
               n_kv + (part->no != ABSENT) + (part->count != ABSENT) + (part->n_tensors != ABSENT));
    for (size_t i = 0; i < n_kv; i++)
        put_kv(qn_gguf_kv_at(whole, i));
    put_number("split.no", part->no, QN_GGUF_U16);
    put_number("split.count", part->count, QN_GGUF_U16);
    put_number("split.tensors.count", part->n_tensors, QN_GGUF_I32);
    uint64_t offset = 0;
    for (size_t i = part->begin; i < part->end; i++) {
        const qn_gguf_tensor *t = qn_gguf_tensor_at(whole, i);
        put64(t->name.length);
        put(t->name.data, t->name.length);
        put32(t->n_dims);
        put(t->dims, t->n_dims * sizeof t->dims[0]);
        put32(t->type);
        put64(offset);
        offset += (t->bytes + 31) / 32 * 32;
    }
    for (size_t i = part->begin; i < part->end; i++) {
        const qn_gguf_tensor *t = qn_gguf_tensor_at(whole, i);
        put_data(32, 0);
        put(t->data, t->bytes);
        if (part->poisoned && qn_string_equals(t->name, part->poisoned))
            memset(image.data + image.size - t->bytes, 0xff, 4);
    }
    put_data(32, 0);
    write_file(path, image.data, image.size);
}

/* The files as gguf-split writes them. bare_first: the first has no tensors. */
static void plan_parts(const qn_gguf *whole, size_t n, bool bare_first, struct part *parts)
{
    const size_t n_tensors = qn_gguf_n_tensors(whole);
    for (size_t i = 0; i < n; i++) {
        const size_t holders = n - bare_first, k = i - bare_first;
        parts[i] =
            (struct part){ .no = (int64_t)i, .count = (int64_t)n, .n_tensors = (int64_t)n_tensors, .has_keys = i == 0 };
        if (i == 0 && bare_first)
            continue;
        parts[i].begin = n_tensors * k / holders;
        parts[i].end = n_tensors * (k + 1) / holders;
    }
}

static void part_path(char *path, size_t size, const char *prefix, size_t no, size_t count)
{
    assert_true(qn_print(path, size, "%s-%05zu-of-%05zu.gguf", prefix, no + 1, count));
}

#endif
