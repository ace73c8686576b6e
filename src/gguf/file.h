/* Internal declarations of the GGUF reader and writer: the open file and its hash tables of names. Private to
 * src/gguf. */
#ifndef QN_GGUF_FILE_H
#define QN_GGUF_FILE_H

#include "base/file.h"
#include "base/mapping.h"
#include "gguf/gguf.h"

/* An open-addressing hash table over an array of structures whose first member is their name, a qn_string. */
struct qn_name_table {
    const void *items;
    size_t stride;
    size_t *slots; /* index + 1, or 0 for an empty slot */
    size_t mask;
};

/* An open file. Constant once qn_gguf_open has returned it. */
struct qn_gguf {
    char *path;
    qn_mapping *mapping; /* NULL if the caller owns the bytes (qn_gguf_open_memory) */
    qn_file_identity identity;
    const uint8_t *base; /* base of the tensors' data: the mapping */
    size_t size;
    /* The file up to its tensors' data: a private copy, so that it stays as it was validated. All keys, values and
     * names point into it. */
    const uint8_t *header;
    uint8_t *header_memory; /* [header_reserved], header_read of them filled; NULL if the caller owns the bytes */
    size_t header_reserved, header_read;
    size_t alignment;
    qn_gguf_kv *kv;
    size_t n_kv, kv_capacity;
    qn_gguf_tensor *tensors;
    size_t n_tensors, tensors_capacity;
    struct qn_name_table kv_table, tensor_table;
    const char *q2_layout;
    /* [n_parts] all files of a split model, or NULL. The first file, parts[0], represents the model: its `tensors`
     * include those of all files. */
    struct qn_gguf **parts;
    size_t n_parts;
};

/* qn_gguf_map - maps one file and validates its structure. The layout of tensors of type 42 is not determined yet:
 * their `bytes` is the distance to the next tensor or to the end of the data. */
qn_status qn_gguf_map(const char *path, qn_gguf **out);

/* qn_gguf_settle_type_42 - determines the layout of the tensors of type 42, and sets their types and sizes. To be
 * called when `file` has the tensors of all files. */
qn_status qn_gguf_settle_type_42(qn_gguf *file);

/* qn_name_table_build - builds the table of an array.
 *
 *   items       [count] structures of `stride` bytes
 *   duplicate   the index of the first item whose name occurred before, or count. The table does not contain items from
 *               there on
 *
 * Free table->slots with qn_free, even after an error. */
qn_status qn_name_table_build(struct qn_name_table *table, const void *items, size_t count, size_t stride,
                              size_t *duplicate);

/* qn_name_table_find - the item with a name, or NULL. */
const void *qn_name_table_find(const struct qn_name_table *table, const char *name, size_t length);

/* qn_gguf_type_name - the name of a value type ("u32"), or "unknown". */
const char *qn_gguf_type_name(uint32_t type);

/* qn_gguf_type_size - the size of a value in bytes; 0 for strings, arrays and unknown types. */
size_t qn_gguf_type_size(uint32_t type);

/* Arguments for "%.*s" in error texts: at most 80 bytes of a name, since a name may be as long as the file. */
#define QN_STRING_ARGS(s) ((s).length < 80 ? (int)(s).length : 80), (s).data

#endif
