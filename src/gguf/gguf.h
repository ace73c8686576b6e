/* GGUF files: a reader (versions 2 and 3, little-endian) and a writer (version 3).
 *
 * The reader does not trust the file: every count, length, offset, type and dimension is checked against the file
 * size, and for overflow, before use. Keys, values and names are a private copy, so they do not change if the file
 * does. Strings are pointers with a length; they are not terminated and may contain any bytes. The tensors' data is
 * mapped: it changes if the file does, and reading it raises SIGBUS if the file was cut (base/mapping.h). Otherwise
 * an open file is immutable; any number of threads may use it. */
#ifndef QN_GGUF_GGUF_H
#define QN_GGUF_GGUF_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_GGUF_MAX_DIMS = 4, QN_GGUF_DEFAULT_ALIGNMENT = 32, QN_GGUF_MAX_FILES = 4096 };

/* Limit of the bytes of a file before its tensors' data, which are kept in memory. A vocabulary of 250,000 tokens
 * takes 10 MiB. */
enum { QN_GGUF_MAX_HEADER = 256 << 20 };

/* Types of metadata values, with the numbers of the file format. */
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

/* A metadata entry: a key and its value.
 *
 *   scalar   at `data`, unaligned
 *   string   in `string`
 *   array    element_type and count; scalars are packed at `data`, strings are returned by qn_gguf_array_strings */
typedef struct qn_gguf_kv {
    qn_string key;
    qn_gguf_type type;
    qn_gguf_type element_type; /* arrays only; never QN_GGUF_ARRAY: nested arrays are QN_ERR_UNSUPPORTED */
    uint64_t count;            /* arrays only */
    const uint8_t *data;       /* [bytes] the value */
    size_t bytes;
    qn_string string; /* strings only */
} qn_gguf_kv;

/* The header and the data of a tensor. */
typedef struct qn_gguf_tensor {
    qn_string name;
    uint32_t type;        /* quant/quant.h has the supported types */
    uint32_t stored_type; /* the number in the file: type, but 42 for each of the layouts that share it */
    uint32_t n_dims;
    uint64_t dims[QN_GGUF_MAX_DIMS]; /* dims[0] is the contiguous dimension, the row length; unused dimensions are 1 */
    uint64_t offset;                 /* from the start of the data section, in bytes */
    const uint8_t *data;             /* in the mapping */
    size_t bytes;                    /* size by type and dimensions; inside the file */
} qn_gguf_tensor;

typedef struct qn_gguf qn_gguf;

/* qn_gguf_split_numbers - whether a name is that of a file of a split model, PREFIX-00001-of-00003.gguf. If so, sets
 * *no to its number, from 0, and *count to the number of files; otherwise both are unchanged. */
bool qn_gguf_split_numbers(const char *path, uint32_t *no, uint32_t *count);

/* qn_gguf_split_rename - changes the name of a file of a split model, in place, to that of file `no` of `count`. */
void qn_gguf_split_rename(char *path, uint32_t no, uint32_t count);

/* qn_gguf_open - opens a file, or all files of a split model, and validates the structure.
 *
 *   path   the file, or any file of a split model
 *   out    close it with qn_gguf_close; NULL on failure
 *
 * QN_ERR_IO            the file cannot be opened, read or mapped (a directory, an empty file, no permission), or
 *                      changed while it was read
 * QN_ERR_FORMAT        wrong magic or version; names with a NUL character; counts too large for the file; strings or
 *                      arrays beyond the end; duplicate keys or tensor names; an alignment that is not a power of two
 *                      from 8 to 1 MiB (GGUF requires a multiple of 8); dimensions that are 0 or overflow; a row length
 *                      that is not a multiple of the type's block size; data that is misaligned, overlaps or exceeds
 *                      the file. The error text names the key or tensor
 * QN_ERR_UNSUPPORTED   an unsupported tensor type, an array of arrays, or a header above QN_GGUF_MAX_HEADER
 * QN_ERR_MEMORY        not enough memory
 *
 * Three tensor layouts share type number 42. The layout is determined here, once for a model (quant/q2_layout.h): the
 * tensors get the type QN_TYPE_Q2_0, QN_TYPE_PQ2_0 or QN_TYPE_OX2_0, and qn_gguf_q2_layout describes the decision.
 *
 * A file whose split.count is 2 or more belongs to a split model, as written by llama.cpp's gguf-split
 * (PREFIX-00001-of-0000N.gguf ...). All its files are opened as one qn_gguf, with the path and the keys of the first
 * file and the tensors of all files, in order. Keys of the other files are ignored, except the split keys.
 * QN_ERR_IO, with their names, if files are missing in the directory. QN_ERR_FORMAT for a file name that contradicts
 * split.no or split.count, more than QN_GGUF_MAX_FILES files, inconsistent counts, a tensor in two files, or a
 * number of tensors other than split.tensors.count. */
qn_status qn_gguf_open(const char *path, qn_gguf **out);

/* qn_gguf_open_alone - as qn_gguf_open, but opens only this file of a split model. */
qn_status qn_gguf_open_alone(const char *path, qn_gguf **out);

/* qn_gguf_open_memory - as qn_gguf_open_alone, from memory.
 *
 *   data   [size] bytes, which must stay valid and unchanged until the file is closed
 *   name   the path in error texts */
qn_status qn_gguf_open_memory(const void *data, size_t size, const char *name, qn_gguf **out);

/* qn_gguf_check_whole - QN_ERR_IO if the file was cut while it was mapped, so that zeros may have been read instead
 * of its data. Call it after reading tensors, before using results. */
qn_status qn_gguf_check_whole(const qn_gguf *file);

/* qn_gguf_check_unchanged - the same, and QN_ERR_IO if the path of one of its files no longer names the opened file
 * with the same size and modification time. Call it at the end of reading the file. */
qn_status qn_gguf_check_unchanged(const qn_gguf *file);

/* qn_gguf_close - unmaps and frees the file. All pointers into it become invalid. NULL is allowed. */
void qn_gguf_close(qn_gguf *file);

/* qn_gguf_path - the path; for a split model, that of its first file. */
const char *qn_gguf_path(const qn_gguf *file);

/* qn_gguf_tensor_path - the path of the file with this tensor's data, for error texts. */
const char *qn_gguf_tensor_path(const qn_gguf *file, const qn_gguf_tensor *tensor);

/* qn_gguf_n_files - the number of files of the model. */
size_t qn_gguf_n_files(const qn_gguf *file);

/* qn_gguf_file_size - the size of all files, in bytes. */
size_t qn_gguf_file_size(const qn_gguf *file);

/* qn_gguf_alignment - the alignment of tensors in the first file, in bytes. */
size_t qn_gguf_alignment(const qn_gguf *file);

/* qn_gguf_drop_pages - drops the resident pages of a tensor's data (MADV_DONTNEED). A later read loads them from the
 * file. */
void qn_gguf_drop_pages(const qn_gguf *file, const qn_gguf_tensor *tensor);

/* qn_gguf_q2_layout - a log message about the layout of the tensors of type 42; NULL if there are none. */
const char *qn_gguf_q2_layout(const qn_gguf *file);

/* qn_gguf_n_kv - the number of metadata entries. */
size_t qn_gguf_n_kv(const qn_gguf *file);

/* qn_gguf_kv_at - entry `index`, which must be less than qn_gguf_n_kv. */
const qn_gguf_kv *qn_gguf_kv_at(const qn_gguf *file, size_t index);

/* qn_gguf_find - the entry with a key, or NULL. */
const qn_gguf_kv *qn_gguf_find(const qn_gguf *file, const char *key);

/* qn_gguf_n_tensors - the number of tensors. */
size_t qn_gguf_n_tensors(const qn_gguf *file);

/* qn_gguf_tensor_at - tensor `index`, which must be less than qn_gguf_n_tensors. */
const qn_gguf_tensor *qn_gguf_tensor_at(const qn_gguf *file, size_t index);

/* qn_gguf_find_tensor - the tensor with a name, or NULL. */
const qn_gguf_tensor *qn_gguf_find_tensor(const qn_gguf *file, const char *name);

/* qn_gguf_get_* - the value of a key, converted to a C type.
 *
 *   required   true: QN_ERR_FORMAT if the key is missing; false: QN_OK, and *out is not changed
 *   out        the value; strings live as long as the file and contain no NUL character
 *
 * An integer may have any integer type in the file; a float may be f32 or f64 and must be finite. QN_ERR_FORMAT,
 * with the key, the value found and the value expected, for another type or a value outside the range of the C type. */
qn_status qn_gguf_get_u32(const qn_gguf *file, const char *key, bool required, uint32_t *out);
qn_status qn_gguf_get_f32(const qn_gguf *file, const char *key, bool required, float *out);
qn_status qn_gguf_get_bool(const qn_gguf *file, const char *key, bool required, bool *out);
qn_status qn_gguf_get_string(const qn_gguf *file, const char *key, bool required, qn_string *out);

/* qn_gguf_array_strings - the strings of a string array.
 *
 *   out   [kv->count] strings that live as long as the file; free the array with free() */
qn_status qn_gguf_array_strings(const qn_gguf *file, const qn_gguf_kv *kv, qn_string **out);

/* qn_gguf_array_i32 - element i of an array of any integer type. QN_ERR_FORMAT for another element type, a value
 * outside the range of the C type, or i >= kv->count. */
qn_status qn_gguf_array_i32(const qn_gguf *file, const qn_gguf_kv *kv, uint64_t i, int32_t *out);

/* qn_gguf_array_f32 - element i of an array of any integer or float type, which must be finite. Errors as above. */
qn_status qn_gguf_array_f32(const qn_gguf *file, const qn_gguf_kv *kv, uint64_t i, float *out);

/* qn_gguf_is_split_key - whether a key describes how a model is split into files: split.no, split.count,
 * split.tensors.count. */
bool qn_gguf_is_split_key(qn_string key);

/* qn_string_equals - whether s and the C string `text` are equal. */
bool qn_string_equals(qn_string s, const char *text);

/* A writer of a GGUF file. Call in this order: create, add keys and tensors, begin_data, data in the order of the
 * tensors, finish, free. Another order is QN_ERR_INVALID.
 *
 * The file is written under a temporary name in the target's directory. qn_gguf_writer_finish calls fsync and
 * renames it to the target, which is unchanged until then. qn_gguf_writer_free without qn_gguf_writer_finish removes
 * the temporary file. */
typedef struct qn_gguf_writer qn_gguf_writer;

qn_status qn_gguf_writer_create(const char *path, qn_gguf_writer **out);
void qn_gguf_writer_free(qn_gguf_writer *writer);

/* qn_gguf_writer_set_alignment - places the tensors' data at multiples of the alignment of an open file, instead of
 * the default, and lets qn_gguf_writer_copy add its key general.alignment. Call it after create. */
qn_status qn_gguf_writer_set_alignment(qn_gguf_writer *writer, const qn_gguf *file);

/* qn_gguf_writer_add_* - adds a metadata entry. */
qn_status qn_gguf_writer_add_u32(qn_gguf_writer *writer, const char *key, uint32_t value);
qn_status qn_gguf_writer_add_f32(qn_gguf_writer *writer, const char *key, float value);
qn_status qn_gguf_writer_add_i32(qn_gguf_writer *writer, const char *key, int32_t value);
qn_status qn_gguf_writer_add_bool(qn_gguf_writer *writer, const char *key, bool value);
qn_status qn_gguf_writer_add_string(qn_gguf_writer *writer, const char *key, const char *value);
qn_status qn_gguf_writer_add_i32s(qn_gguf_writer *writer, const char *key, const int32_t *values, size_t count);
qn_status qn_gguf_writer_add_bools(qn_gguf_writer *writer, const char *key, const bool *values, size_t count);
qn_status qn_gguf_writer_add_strings(qn_gguf_writer *writer, const char *key, const qn_string *values, size_t count);

/* qn_gguf_writer_copy - adds an entry of an open file, unchanged. general.alignment is skipped unless the writer
 * has the alignment of a file. */
qn_status qn_gguf_writer_copy(qn_gguf_writer *writer, const qn_gguf_kv *kv);

/* qn_gguf_writer_add_tensor - adds the header of a tensor with `bytes` bytes of data. The data is stored in the
 * order of these calls, at multiples of the alignment. */
qn_status qn_gguf_writer_add_tensor(qn_gguf_writer *writer, qn_string name, uint32_t type, uint32_t n_dims,
                                    const uint64_t *dims, size_t bytes);

/* qn_gguf_writer_begin_data - writes the header. No keys or tensors can be added afterwards. */
qn_status qn_gguf_writer_begin_data(qn_gguf_writer *writer);

/* qn_gguf_writer_data - appends data of the tensors, in their order and in chunks of any size. The writer adds the
 * padding between tensors. QN_ERR_IO, with the system's error text, if it cannot be written (disk full). */
qn_status qn_gguf_writer_data(qn_gguf_writer *writer, const void *data, size_t bytes);

/* qn_gguf_writer_finish - calls fsync and renames the file to the target. All tensors must have been written. */
qn_status qn_gguf_writer_finish(qn_gguf_writer *writer);

#endif
