/* A file that appears whole or not at all: written beside its target under a temporary name, and renamed onto it when done.
 * What is in it is the caller's business. */
#ifndef QN_BASE_ATOMIC_FILE_H
#define QN_BASE_ATOMIC_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_atomic_file {
    char *target;    /* as the file system knows it: symbolic links are followed */
    char *temporary; /* .NAME.XXXXXX.part in the target's folder */
    int fd;
    bool committed;
} qn_atomic_file;

/* qn_atomic_file_create - the temporary file. QN_ERR_IO when `path` cannot be written or is anything else than a regular file or
 * none. A target that exists passes its permissions on. Free with qn_atomic_file_free, whatever the status. */
qn_status qn_atomic_file_create(qn_atomic_file *file, const char *path);

/* qn_atomic_file_write - the next bytes. QN_ERR_IO with the system's text on a full disk. */
qn_status qn_atomic_file_write(qn_atomic_file *file, const void *data, size_t size);

/* qn_atomic_file_commit - flush it to the disk and rename it onto the target. */
qn_status qn_atomic_file_commit(qn_atomic_file *file);

/* qn_atomic_file_free - close it, and remove the temporary file of one that was not finished. */
void qn_atomic_file_free(qn_atomic_file *file);

#endif
