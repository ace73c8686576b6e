/* The files of the pipeline cache: one cubin in a file of its own, named for a hash of all that it was made from, behind a
 * header that says so again, with a checksum. Nothing in such a file is trusted. Where code comes from otherwise is
 * device/cuda/pipeline.h. */
#ifndef QN_DEVICE_CUDA_CUBIN_FILE_H
#define QN_DEVICE_CUDA_CUBIN_FILE_H

#include "base/status.h"
#include "device/cuda/code.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_CUBIN_NAME_MAX = 40, QN_COMPILER_MAX = 64 };

typedef struct qn_cubin_key {
    uint8_t bytes[16];
} qn_cubin_key;

/* qn_cubin_key_of - XXH3-128 of quern's version, architecture, definitions, and names and texts of the the files, in order: the
 * first is the source. At most QN_GPU_MAX_FILES. */
qn_cubin_key qn_cubin_key_of(const char *arch, const char *defines, const qn_gpu_file *const *files, size_t n_files);

/* qn_cubin_name - "0123456789abcdef0123456789abcdef.cubin". */
void qn_cubin_name(const qn_cubin_key *key, char name[QN_CUBIN_NAME_MAX]);

/* qn_cubin_folder - where the user's cache is: $XDG_CACHE_HOME/quern, else $HOME/.cache/quern; free() it. NULL where neither
 * variable is an absolute path, and QN_OK: then nothing is cached. */
qn_status qn_cubin_folder(char **folder);

/* qn_cubin_read - the file's cubin; free() it. *data is NULL, and the status QN_OK, where there is no such file. QN_ERR_FORMAT
 * for a file that is not one of this key, whole and undamaged; QN_ERR_IO where it cannot be read. */
qn_status qn_cubin_read(const char *folder, const qn_cubin_key *key, void **data, size_t *bytes,
                        char compiler[QN_COMPILER_MAX]);

/* qn_cubin_write - make the folder, and the file, which appears whole or not at all. */
qn_status qn_cubin_write(const char *folder, const qn_cubin_key *key, const char *compiler, const void *data, size_t bytes);

/* qn_cubin_clear - remove every file of the cache, and what writers that were killed have left behind; how many, and how many
 * bytes they had. Other files stay. A folder that is not there is empty. */
qn_status qn_cubin_clear(const char *folder, size_t *n_files, uint64_t *bytes);

#endif
