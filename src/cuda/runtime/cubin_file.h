/* The files of the pipeline cache. Each file holds one cubin. Its name is a hash of everything that the cubin was
 * compiled from; its header repeats the hash and has a checksum. Files are validated when read.
 * cuda/runtime/pipeline.h describes how the cache is used. */
#ifndef QN_CUDA_RUNTIME_CUBIN_FILE_H
#define QN_CUDA_RUNTIME_CUBIN_FILE_H

#include "base/status.h"
#include "cuda/runtime/code.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_CUBIN_NAME_MAX = 40, QN_COMPILER_MAX = 64 };

typedef struct qn_cubin_key {
    uint8_t bytes[16];
} qn_cubin_key;

/* qn_cubin_key_of - Returns the XXH3-128 of quern's version, the architecture, the definitions, and the names and texts
 * of the files in order, the source first. n_files is at most QN_GPU_MAX_FILES. */
qn_cubin_key qn_cubin_key_of(const char *arch, const char *defines, const qn_gpu_file *const *files, size_t n_files);

/* qn_cubin_name - Writes the file name of a key: "0123456789abcdef0123456789abcdef.cubin". */
void qn_cubin_name(const qn_cubin_key *key, char name[QN_CUBIN_NAME_MAX]);

/* qn_cubin_folder - Finds the user's cache directory: $XDG_CACHE_HOME/quern, else $HOME/.cache/quern. The caller
 * free()s *folder. *folder is NULL, and the status QN_OK, if neither variable is an absolute path: then nothing is
 * cached. */
qn_status qn_cubin_folder(char **folder);

/* qn_cubin_check_folder - Checks the directory's owner and permissions: QN_ERR_INVALID if it exists and a user other
 * than this one or root owns it or may write to it. */
qn_status qn_cubin_check_folder(const char *folder);

/* qn_cubin_read - Reads the cubin of a key; the caller free()s *data. *data is NULL, and the status QN_OK, if there is
 * no such file. QN_ERR_FORMAT if the file is damaged, truncated, a link or has another key; QN_ERR_INVALID as for
 * qn_cubin_check_folder, for the directory and the file; QN_ERR_IO if the file cannot be read. */
qn_status qn_cubin_read(const char *folder, const qn_cubin_key *key, void **data, size_t *bytes,
                        char compiler[QN_COMPILER_MAX]);

/* qn_cubin_write - Creates the directory if necessary, with mode 0700, and writes the file, with mode 0600, atomically
 * (temporary file and rename). QN_ERR_INVALID as for qn_cubin_check_folder. */
qn_status qn_cubin_write(const char *folder, const qn_cubin_key *key, const char *compiler, const void *data,
                         size_t bytes);

/* qn_cubin_clear - Removes all cache files and the temporary files of killed writers. *n_files and *bytes are the
 * number and size of the removed files. Other files stay. A directory that does not exist counts as empty. */
qn_status qn_cubin_clear(const char *folder, size_t *n_files, uint64_t *bytes);

#endif
