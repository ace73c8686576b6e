/* GGUF v3 files: reading through a memory map, and writing.
 *
 * The reader trusts nothing: every count, length, offset, type and dimension is checked against the file's size, with overflow
 * checked, before it is used. Strings are (pointer, length) into the map: not terminated, possibly holding any bytes.
 * A reader does not change after opening; any number of threads may use it. */
#ifndef QN_GGUF_GGUF_H
#define QN_GGUF_GGUF_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_GGUF_MAX_DIMS = 4, QN_GGUF_DEFAULT_ALIGNMENT = 32, QN_GGUF_MAX_FILES = 4096 };

/* Value types of the format's key-value section, with the numbers they have in a file. */
typedef enum qn_gguf_type {
    QN_GGUF_U8 = 0,
    QN_GGUF_I8,
    QN_GGUF_U16,
    QN_GGUF_I16,
    QN_GGUF_U32,
    QN_GGUF_I32,
    QN_GGUF_F32,
    QN_GGUF_BOOL,
    QN_GGUF_STRING,
    QN_GGUF_ARRAY,
    QN_GGUF_U64,
    QN_GGUF_I64,
    QN_GGUF_F64
} qn_gguf_type;

typedef struct qn_string {
    const char *data; /* not terminated */
    size_t length;
} qn_string;

/* One key and its value. For a scalar, `data` points at the value in the file (unaligned). For a string, `string` is it. For an
 * array, `element_type` and `count` describe it: scalars lie packed at `data`, strings are reached by qn_gguf_array_strings. */
typedef struct qn_gguf_kv {
    qn_string key;
    qn_gguf_type type;
    qn_gguf_type element_type; /* arrays only; never QN_GGUF_ARRAY: nested arrays are refused */
    uint64_t count;            /* arrays only */
    const uint8_t *data;       /* the value's bytes: `bytes` of them lie inside the file */
    size_t bytes;
    qn_string string; /* strings only */
} qn_gguf_kv;

/* One tensor's header and where its data lie. dims[0] is the contiguous one (row width); unused dims are 1. */
typedef struct qn_gguf_tensor {
    qn_string name;
    uint32_t type; /* the number in the file: see quant/quant.h for those that quern knows */
    uint32_t n_dims;
    uint64_t dims[QN_GGUF_MAX_DIMS];
    uint64_t offset;     /* from the start of the data section */
    const uint8_t *data; /* in the map */
    size_t bytes;        /* what its type and dimensions need; checked to lie inside the file */
} qn_gguf_tensor;

typedef struct qn_gguf qn_gguf;

/* qn_gguf_open - map `path` and check its whole structure.
 *
 * Refused with QN_ERR_FORMAT, naming the key or tensor: wrong magic or version, counts that the file cannot hold, strings or
 * arrays past the end, duplicate keys or tensor names, an alignment that is not a power of two from 8 to 1 MiB (8: GGUF asks
 * for a multiple of 8), dimensions that are zero or overflow, rows that are not a multiple of the type's block, data that are
 * misaligned, overlap or lie past the end. A tensor type that quern does not know is QN_ERR_UNSUPPORTED, naming tensor and
 * number. The three layouts that share number 42 are told apart here, once for the file (quant/q2_layout.h); their tensors come
 * out as QN_TYPE_Q2_0, QN_TYPE_PQ2_0 or QN_TYPE_OX2_0, and qn_gguf_q2_layout says which it was. QN_ERR_IO when the file cannot
 * be opened, read or mapped (a directory, an empty file, no permission). *out is owned by the caller (qn_gguf_close) and NULL
 * on failure.
 *
 * A file whose key split.count is 2 or more is one of those that llama.cpp's gguf-split writes, PREFIX-00001-of-0000N.gguf and
 * so on: all of them are opened, whichever was named, and are one qn_gguf from there on: the keys and the path of the first,
 * the tensors of all in the files' order. Keys of the other files that are not about the split are not looked at. QN_ERR_IO,
 * naming the missing ones, when some are not in the same folder. QN_ERR_FORMAT for a name that does not go with split.no and
 * split.count, more than QN_GGUF_MAX_FILES files, files that disagree on the counts, a tensor in two files, and a number of
 * tensors that is not split.tensors.count. */
qn_status qn_gguf_open(const char *path, qn_gguf **out);

/* qn_gguf_open_alone - the same, but of a split model this file alone. */
qn_status qn_gguf_open_alone(const char *path, qn_gguf **out);

/* qn_gguf_open_memory - qn_gguf_open_alone over `size` bytes at `data`, which the caller keeps alive; `name` stands for the
 * path in texts. */
qn_status qn_gguf_open_memory(const void *data, size_t size, const char *name, qn_gguf **out);

/* qn_gguf_close - unmap and free; NULL is allowed. Every pointer handed out becomes invalid. */
void qn_gguf_close(qn_gguf *file);

const char *qn_gguf_path(const qn_gguf *file);
/* qn_gguf_tensor_path - the path of the file that holds this tensor's data, for texts. */
const char *qn_gguf_tensor_path(const qn_gguf *file, const qn_gguf_tensor *tensor);
/* qn_gguf_n_files - how many files are open as this one. qn_gguf_file_size - the bytes of all of them. */
size_t qn_gguf_n_files(const qn_gguf *file);
size_t qn_gguf_file_size(const qn_gguf *file);
/* qn_gguf_alignment - of the first file. */
size_t qn_gguf_alignment(const qn_gguf *file);
/* qn_gguf_drop_pages - memory need not hold this tensor's part of a mapped file any longer; it comes back when it is read. */
void qn_gguf_drop_pages(const qn_gguf *file, const qn_gguf_tensor *tensor);

/* qn_gguf_q2_layout - NULL, or one sentence for the log on which of the layouts of type 42 the file has. */
const char *qn_gguf_q2_layout(const qn_gguf *file);

size_t qn_gguf_n_kv(const qn_gguf *file);
const qn_gguf_kv *qn_gguf_kv_at(const qn_gguf *file, size_t index);
/* qn_gguf_find - the entry with this key, or NULL. */
const qn_gguf_kv *qn_gguf_find(const qn_gguf *file, const char *key);

size_t qn_gguf_n_tensors(const qn_gguf *file);
const qn_gguf_tensor *qn_gguf_tensor_at(const qn_gguf *file, size_t index);
const qn_gguf_tensor *qn_gguf_find_tensor(const qn_gguf *file, const char *name);

/* Typed look-ups. `*out` is untouched and the status QN_OK when the key is absent and `required` is false; absent and required
 * is QN_ERR_FORMAT; a value of another type, or one out of range for the C type, is QN_ERR_FORMAT with key, found and expected.
 * Any integer type in the file serves for integers, f32 and f64 for floats (finite only). Strings point into the map. */
qn_status qn_gguf_get_u32(const qn_gguf *file, const char *key, bool required, uint32_t *out);
qn_status qn_gguf_get_f32(const qn_gguf *file, const char *key, bool required, float *out);
qn_status qn_gguf_get_bool(const qn_gguf *file, const char *key, bool required, bool *out);
qn_status qn_gguf_get_string(const qn_gguf *file, const char *key, bool required, qn_string *out);

/* qn_gguf_array_strings - views of all strings of a string array, in an array of kv->count owned by the caller (free()). */
qn_status qn_gguf_array_strings(const qn_gguf *file, const qn_gguf_kv *kv, qn_string **out);
/* qn_gguf_array_i32 / _f32 - element i of a numeric array, converted: any integer type serves for i32, any integer or float
 * type for f32. QN_ERR_FORMAT for another element type, a value out of range (for f32: not finite) or i >= count. */
qn_status qn_gguf_array_i32(const qn_gguf *file, const qn_gguf_kv *kv, uint64_t i, int32_t *out);
qn_status qn_gguf_array_f32(const qn_gguf *file, const qn_gguf_kv *kv, uint64_t i, float *out);

/* qn_gguf_is_split_key - whether a key is about how a model is split into files, and not about the model. */
bool qn_gguf_is_split_key(qn_string key);

/* qn_string_equals - whether a view holds exactly this C string. */
bool qn_string_equals(qn_string s, const char *text);

/* Writing. Build the header in memory, then stream the tensors' data in the order in which they were added.
 *
 * The file is written under a temporary name in the target's folder and renamed onto the target by qn_gguf_writer_finish, after
 * an fsync; until then the target is untouched. qn_gguf_writer_free without a finish removes the temporary file. */
typedef struct qn_gguf_writer qn_gguf_writer;

qn_status qn_gguf_writer_create(const char *path, qn_gguf_writer **out);
void qn_gguf_writer_free(qn_gguf_writer *writer);
/* qn_gguf_writer_temp_path - the temporary file's name, so that a signal handler can unlink it; owned by the writer. */
const char *qn_gguf_writer_temp_path(const qn_gguf_writer *writer);

qn_status qn_gguf_writer_add_u32(qn_gguf_writer *writer, const char *key, uint32_t value);
qn_status qn_gguf_writer_add_f32(qn_gguf_writer *writer, const char *key, float value);
qn_status qn_gguf_writer_add_string(qn_gguf_writer *writer, const char *key, const char *value);
/* qn_gguf_writer_copy - an entry of an open file as it stands there; general.alignment is left out, the writer having its own.
 */
qn_status qn_gguf_writer_copy(qn_gguf_writer *writer, const qn_gguf_kv *kv);
/* qn_gguf_writer_add_tensor - announce a tensor of `bytes` bytes; offsets are placed in this order at the alignment (32). */
qn_status qn_gguf_writer_add_tensor(qn_gguf_writer *writer, qn_string name, uint32_t type, uint32_t n_dims,
                                    const uint64_t *dims, size_t bytes);
/* qn_gguf_writer_begin_data - write the header; no more keys or tensors after this. */
qn_status qn_gguf_writer_begin_data(qn_gguf_writer *writer);
/* qn_gguf_writer_data - the next bytes of the data section: each tensor's bytes must be given exactly, in order, in any pieces;
 * padding between tensors is the writer's. QN_ERR_IO on a full disk, with the system's text. */
qn_status qn_gguf_writer_data(qn_gguf_writer *writer, const void *data, size_t bytes);
qn_status qn_gguf_writer_finish(qn_gguf_writer *writer);

#endif
