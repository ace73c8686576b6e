/* What the reader's files share: the open file, and its tables of names. Nothing outside this folder includes it. */
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
};

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
#define QN_SHOW(s) ((s).length < 80 ? (int)(s).length : 80), (s).data

#endif
