/* Safetensors files: a JSON header with name, dtype, shape and range of bytes of each tensor, then the data.
 *
 * The reader does not trust the file: the header's length, every dtype, shape and range are checked against the file's size
 * and for overflow; ranges must fill the data without gaps and overlaps. Data are read with pread, never mapped: a file that
 * becomes shorter while it is read is an error, and memory holds only what the caller has requested. */
#ifndef QN_GGUF_SAFETENSORS_H
#define QN_GGUF_SAFETENSORS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* The header of a model of 100000 tensors has 15 MB. The reference implementation allows 100 MB, from which JSON values of
 * gigabytes could be made. */
enum { QN_SAFETENSORS_MAX_DIMS = 8, QN_SAFETENSORS_MAX_HEADER = 32 << 20 };

typedef struct qn_safetensor {
    const char *name;
    const char *dtype; /* as in the file: "BF16" */
    uint32_t n_dims;
    uint64_t dims[QN_SAFETENSORS_MAX_DIMS]; /* the last is contiguous; unused dimensions are 1 */
    uint64_t begin;                         /* from the start of the data, in bytes */
    uint64_t bytes;                         /* size by dtype and dimensions; inside the file */
} qn_safetensor;

typedef struct qn_safetensors qn_safetensors;

/* qn_safetensors_open - open a file and validate its header. Close it with qn_safetensors_close.
 *
 * QN_ERR_IO       the file cannot be read
 * QN_ERR_FORMAT   the header is damaged; the text names the tensor */
qn_status qn_safetensors_open(const char *path, qn_safetensors **out);
void qn_safetensors_close(qn_safetensors *file);

/* qn_safetensors_path, qn_safetensors_count, qn_safetensors_at - the path, and the tensors in the order of their data. */
const char *qn_safetensors_path(const qn_safetensors *file);
size_t qn_safetensors_count(const qn_safetensors *file);
const qn_safetensor *qn_safetensors_at(const qn_safetensors *file, size_t i);

/* qn_safetensors_header_bytes - length of the header, of which a file keeps the values. */
uint64_t qn_safetensors_header_bytes(const qn_safetensors *file);

/* qn_safetensors_read - read bytes [at, at + size) of a tensor. Any number of threads may call it. The result is 0 or an errno;
 * a file that has become shorter gives ENODATA. The range must be inside the tensor. */
int qn_safetensors_read(const qn_safetensors *file, const qn_safetensor *tensor, uint64_t at, void *out, size_t size);

/* qn_safetensors_check_unchanged - at the end of reading: QN_ERR_IO if the file's size or time of modification is no longer
 * that of qn_safetensors_open. */
qn_status qn_safetensors_check_unchanged(const qn_safetensors *file);

/* qn_safetensors_prefetch - tell the kernel that these bytes will be read soon. A range beyond the tensor's end is cut. */
void qn_safetensors_prefetch(const qn_safetensors *file, const qn_safetensor *tensor, uint64_t at, uint64_t size);

#endif
