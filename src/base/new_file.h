/* A file that appears whole or not at all: written beside its target under a temporary name, and renamed onto it when done.
 * What is in it is the caller's business. */
#ifndef QN_BASE_NEW_FILE_H
#define QN_BASE_NEW_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_new_file {
    char *target;    /* as the file system knows it: symbolic links are followed */
    char *temporary; /* .NAME.XXXXXX.part in the target's folder */
    int fd;
    bool finished;
} qn_new_file;

/* qn_new_file_create - the temporary file. QN_ERR_IO when `path` cannot be written or is anything else than a regular file or
 * none. A target that exists passes its permissions on. Free with qn_new_file_free, whatever the status. */
qn_status qn_new_file_create(qn_new_file *file, const char *path);

/* qn_new_file_write - the next bytes. QN_ERR_IO with the system's text on a full disk. */
qn_status qn_new_file_write(qn_new_file *file, const void *data, size_t size);

/* qn_new_file_finish - flush it to the disk and rename it onto the target. */
qn_status qn_new_file_finish(qn_new_file *file);

/* qn_new_file_free - close it, and remove the temporary file of one that was not finished. */
void qn_new_file_free(qn_new_file *file);

#endif
