/* Copies of files of qwen35 with other keys or tensors: without their MTP block or with it alone, with a tensor that is
 * missing, has another name or another shape, with another alignment. */
#ifndef QN_TESTS_HELPER_CHANGE_H
#define QN_TESTS_HELPER_CHANGE_H

#include "helper_image.h"

#include "base/append.h"
#include "model/weights.h"
#include "quant/quant.h"

/* A key in place of one of this name, or a new one. */
struct new_key {
    const char *name;
    uint32_t value;
    const char *text; /* or a string */
    int32_t *array;   /* or [n] */
    qn_string *strings;
    size_t n;
};

struct change {
    bool strip, alone; /* without the MTP block; without the layers before it */
    bool as_first;     /* the MTP block becomes blk.0 */
    const char *without, *renamed, *to, *misshapen;
    const char *without_key;
    struct new_key keys[4];
    size_t alignment;
    bool as_42;           /* tensors of PQ2_0 get the number 42, as older files have it */
    const char *poisoned; /* a tensor whose first weight becomes a NaN */
};

/* An open file without tensors, of this alignment. */
static inline qn_gguf *aligned_file(size_t alignment)
{
    qn_gguf *file;
    put_header(3, 0, 1);
    put_key("general.alignment", QN_GGUF_U32);
    put32((uint32_t)alignment);
    put_data(alignment, 0);
    assert_ok(qn_gguf_open_memory(image.data, image.size, "aligned", &file));
    return file;
}

static inline void add_key(qn_gguf_writer *w, const struct new_key *k)
{
    if (k->text)
        assert_ok(qn_gguf_writer_add_string(w, k->name, k->text));
    else if (k->strings)
        assert_ok(qn_gguf_writer_add_strings(w, k->name, k->strings, k->n));
    else if (k->array)
        assert_ok(qn_gguf_writer_add_i32s(w, k->name, k->array, k->n));
    else
        assert_ok(qn_gguf_writer_add_u32(w, k->name, k->value));
}

static inline bool is_replaced(const struct change *c, qn_string key)
{
    bool replaced = c->without_key && qn_string_equals(key, c->without_key);
    for (size_t i = 0; i < COUNT(c->keys) && c->keys[i].name; i++)
        replaced |= qn_string_equals(key, c->keys[i].name);
    return replaced || (c->strip && qn_string_equals(key, "qwen35.nextn_predict_layers"));
}

/* The number of layers before the block, or of all if there is none. */
static inline uint32_t layers_of(const qn_gguf *file)
{
    uint32_t n = 0, n_mtp = 0;
    assert_ok(qn_gguf_get_u32(file, "qwen35.block_count", false, &n));
    assert_ok(qn_gguf_get_u32(file, "qwen35.nextn_predict_layers", false, &n_mtp));
    return n - n_mtp;
}

static inline void copy_keys(const qn_gguf *file, qn_gguf_writer *w, const struct change *c)
{
    for (size_t i = 0; i < qn_gguf_n_kv(file); i++) {
        qn_gguf_kv kv = *qn_gguf_kv_at(file, i);
        const uint32_t n_layers = layers_of(file);
        if (is_replaced(c, kv.key))
            continue;
        if (c->strip && qn_string_equals(kv.key, "qwen35.block_count"))
            kv.data = (const uint8_t *)&n_layers;
        if (c->strip && qn_string_equals(kv.key, "qwen35.attention.recurrent_layers"))
            kv.count = kv.bytes = n_layers;
        assert_ok(qn_gguf_writer_copy(w, &kv));
    }
    for (size_t i = 0; i < COUNT(c->keys) && c->keys[i].name; i++)
        add_key(w, &c->keys[i]);
}

static inline bool is_dropped(const struct change *c, qn_string name, uint32_t n_layers)
{
    const uint32_t block = qn_weights_block(name);
    return (c->strip && block == n_layers) || (c->alone && block < n_layers) ||
           (c->without && qn_string_equals(name, c->without));
}

/* The name that a tensor gets; `buffer` may hold it. */
static inline qn_string changed_name(const struct change *c, qn_string name, uint32_t n_layers, char buffer[128])
{
    if (c->renamed && qn_string_equals(name, c->renamed))
        return (qn_string){ c->to, strlen(c->to) };
    if (!c->as_first || qn_weights_block(name) != n_layers)
        return name;
    const char *part = (const char *)memchr(name.data + 4, '.', name.length - 4) + 1;
    const int length = (int)(name.data + name.length - part);
    assert_true(qn_print(buffer, 128, "blk.0.%.*s", length, part));
    return (qn_string){ buffer, strlen(buffer) };
}

/* Writes a copy of a file with changes. */
static inline void change_file(const char *from, const char *to, const struct change *c)
{
    qn_gguf *file, *aligned = c->alignment ? aligned_file(c->alignment) : NULL;
    qn_gguf_writer *w;
    assert_ok(qn_gguf_open(from, &file));
    assert_ok(qn_gguf_writer_create(to, &w));
    if (aligned) {
        assert_ok(qn_gguf_writer_set_alignment(w, aligned));
        assert_ok(qn_gguf_writer_copy(w, qn_gguf_find(aligned, "general.alignment")));
    }
    copy_keys(file, w, c);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < qn_gguf_n_tensors(file); i++) {
            const qn_gguf_tensor *t = qn_gguf_tensor_at(file, i);
            const bool misshapen = c->misshapen && qn_string_equals(t->name, c->misshapen);
            char buffer[128];
            const uint64_t dims[] = { t->n_dims == 1 ? t->dims[0] / 2 : t->dims[1], t->n_dims == 1 ? 2 : t->dims[0] };
            const bool is_42 = c->as_42 && t->type == QN_TYPE_PQ2_0;
            if (is_dropped(c, t->name, layers_of(file)))
                continue;
            if (!pass) {
                assert_ok(qn_gguf_writer_add_tensor(w, changed_name(c, t->name, layers_of(file), buffer),
                                                    is_42 ? 42 : t->type, misshapen ? 2 : t->n_dims,
                                                    misshapen ? dims : t->dims, t->bytes));
                continue;
            }
            uint8_t *data = malloc(t->bytes);
            memcpy(data, t->data, t->bytes);
            if (c->poisoned && qn_string_equals(t->name, c->poisoned))
                memset(data, 0xff, 4);
            assert_ok(qn_gguf_writer_data(w, data, t->bytes));
            free(data);
        }
        assert_ok(pass ? qn_gguf_writer_finish(w) : qn_gguf_writer_begin_data(w));
    }
    qn_gguf_writer_free(w);
    qn_gguf_close(file);
    qn_gguf_close(aligned);
}

#endif
