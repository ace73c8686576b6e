/* What the reader's files share: the open file, its parts, and its tables of names. Nothing outside this folder includes it. */
#ifndef QN_GGUF_FILE_H
#define QN_GGUF_FILE_H

#include "gguf/gguf.h"

/* An open-addressing table over an array of structures whose first member is their qn_string. */
struct qn_name_table {
    const void *items;
    size_t stride;
    uint64_t seed;
    size_t *slots; /* index + 1, or 0 */
    size_t mask;
};

struct qn_gguf {
    char *path;
    void *map; /* NULL when the caller owns the bytes */
    const uint8_t *base;
    size_t size;
    size_t alignment;
    qn_gguf_kv *kv;
    size_t n_kv, kv_capacity;
    qn_gguf_tensor *tensors;
    size_t n_tensors, tensors_capacity;
    struct qn_name_table kv_table, tensor_table;
    const char *q2_layout;
    /* Of a split model, which is its first file with the tensors of all: every file, itself at [0]; NULL for a file alone. */
    struct qn_gguf **parts;
    size_t n_parts;
};

/* qn_gguf_map - map one file and check its structure. Tensors of type 42 are left as they are, with all bytes that they have to
 * themselves in `bytes`: qn_gguf_settle_type_42 decides when the tensors of all files are together. */
qn_status qn_gguf_map(const char *path, qn_gguf **out);
qn_status qn_gguf_settle_type_42(qn_gguf *file);

/* qn_name_table_build - fill the table with `count` items. When two have the same name, *duplicate is the later one's index,
 * else count. The slots are the caller's to free with qn_free, whatever the status. */
qn_status qn_name_table_build(struct qn_name_table *table, const void *items, size_t count, size_t stride, uint64_t seed,
                              size_t *duplicate);
/* qn_name_table_find - the item with this name, or NULL. */
const void *qn_name_table_find(const struct qn_name_table *table, const char *name, size_t length);

/* qn_gguf_type_name - "u32"; "unknown" for a number that is no type. qn_gguf_type_size - 0 for strings, arrays and unknown
 * ones. */
const char *qn_gguf_type_name(uint32_t type);
size_t qn_gguf_type_size(uint32_t type);

/* A name for a text with "%.*s": the first bytes of one that may be as long as the file. */
#define QN_STRING_ARGS(s) ((s).length < 80 ? (int)(s).length : 80), (s).data

#endif
