/* Safetensors files: a JSON header with the name, dtype, shape and byte range of each tensor, followed by the data.
 *
 * The reader does not trust the file: the header's length and every dtype, shape and range are checked against the
 * file's size and for overflow; ranges must cover the data without gaps and overlaps. Data is read with pread, never
 * mapped: a file that becomes shorter meanwhile gives an error, and memory holds only the data requested. */
#ifndef QN_GGUF_SAFETENSORS_H
#define QN_GGUF_SAFETENSORS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* The header of a model with 100000 tensors has 15 MB. The reference implementation allows 100 MB, which could
 * produce gigabytes of JSON values. */
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

/* qn_safetensors_open - opens a file and validates its header. Close it with qn_safetensors_close.
 *
 * QN_ERR_IO       the file cannot be read
 * QN_ERR_FORMAT   the header is damaged; the error text names the tensor */
qn_status qn_safetensors_open(const char *path, qn_safetensors **out);
void qn_safetensors_close(qn_safetensors *file);

/* qn_safetensors_path - the path of the file. */
const char *qn_safetensors_path(const qn_safetensors *file);

/* qn_safetensors_count - the number of tensors. */
size_t qn_safetensors_count(const qn_safetensors *file);

/* qn_safetensors_at - tensor i, in the order of their data. */
const qn_safetensor *qn_safetensors_at(const qn_safetensors *file, size_t i);

/* qn_safetensors_header_bytes - the length of the header, whose values are kept in memory. */
uint64_t qn_safetensors_header_bytes(const qn_safetensors *file);

/* qn_safetensors_read - reads bytes [at, at + size) of a tensor; the range must be inside it. Returns 0 or an errno;
 * a file that has become shorter gives ENODATA. Any number of threads may call it. */
int qn_safetensors_read(const qn_safetensors *file, const qn_safetensor *tensor, uint64_t at, void *out, size_t size);

/* qn_safetensors_check_unchanged - QN_ERR_IO if the file's size or modification time has changed since
 * qn_safetensors_open. Call it at the end of reading. */
qn_status qn_safetensors_check_unchanged(const qn_safetensors *file);

/* qn_safetensors_prefetch - tells the kernel that these bytes will be read soon. The range is cut at the tensor's
 * end. */
void qn_safetensors_prefetch(const qn_safetensors *file, const qn_safetensor *tensor, uint64_t at, uint64_t size);

#endif
