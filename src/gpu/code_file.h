/* The files of the cache of compiled kernels. A file's name is a hash of everything that its code was compiled from;
 * its header repeats the hash and has a checksum. Files are validated when read. cuda/runtime/pipeline.h and
 * vulkan/runtime/pipeline_cache.h describe how the cache is used. */
#ifndef QN_GPU_CODE_FILE_H
#define QN_GPU_CODE_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_CODE_NAME_MAX = 48, QN_COMPILER_MAX = 64 };

typedef struct qn_code_key {
    uint8_t bytes[16];
} qn_code_key;

/* The files of a backend. */
typedef struct qn_code_kind {
    char magic[8];
    const char *suffix; /* of a file's name: ".cubin" */
} qn_code_kind;

/* Kernels of CUDA; pipelines of a Vulkan driver, in a form of its own. */
extern const qn_code_kind qn_cubin_files, qn_pipeline_files;

/* qn_code_file_name - Writes the file name of a key: "0123456789abcdef0123456789abcdef.cubin". */
void qn_code_file_name(const qn_code_kind *kind, const qn_code_key *key, char name[QN_CODE_NAME_MAX]);

/* qn_code_folder - Finds the user's cache directory: $XDG_CACHE_HOME/quern, else $HOME/.cache/quern. The caller
 * free()s *folder. *folder is NULL, and the status QN_OK, if neither variable is an absolute path: then nothing is
 * cached. */
qn_status qn_code_folder(char **folder);

/* qn_code_check_folder - Checks the directory's owner and permissions: QN_ERR_INVALID if it exists and a user other
 * than this one or root owns it or may write to it. */
qn_status qn_code_check_folder(const char *folder);

/* qn_code_file_read - Reads the code of a key; the caller free()s *data. *data is NULL, and the status QN_OK, if there
 * is no such file. QN_ERR_FORMAT if the file is damaged, truncated, a link or has another key; QN_ERR_INVALID as for
 * qn_code_check_folder, for the directory and the file; QN_ERR_IO if the file cannot be read. */
qn_status qn_code_file_read(const qn_code_kind *kind, const char *folder, const qn_code_key *key, void **data,
                            size_t *bytes, char compiler[QN_COMPILER_MAX]);

/* qn_code_file_write - Creates the directory if necessary, with mode 0700, and writes the file, with mode 0600,
 * atomically (temporary file and rename). QN_ERR_INVALID as for qn_code_check_folder. */
qn_status qn_code_file_write(const qn_code_kind *kind, const char *folder, const qn_code_key *key, const char *compiler,
                             const void *data, size_t bytes);

/* qn_code_file_clear - Removes all cache files, and the temporary files of killed writers. *n_files and *bytes are the
 * number and size of the removed files. Other files stay. A directory that does not exist counts as empty. */
qn_status qn_code_file_clear(const char *folder, size_t *n_files, uint64_t *bytes);

#endif
