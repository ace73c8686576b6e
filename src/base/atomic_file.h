/* Atomic file replacement: data is written to a temporary file in the target's directory, which is renamed to the
 * target at the end. Until then the target is unchanged. */
#ifndef QN_BASE_ATOMIC_FILE_H
#define QN_BASE_ATOMIC_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file being written. Used by one thread at a time. */
typedef struct qn_atomic_file {
    char *target;    /* the file to replace: the path with its links resolved */
    char *temporary; /* .NAME.XXXXXX.quern.part in the target's directory */
    bool is_named;   /* the temporary file has this name; false: it has none yet */
    int fd;
    uint64_t written, written_back; /* bytes written; bytes whose transfer to the disk has begun */
    bool committed;
} qn_atomic_file;

typedef enum qn_file_access {
    QN_FILE_SHARED,  /* an existing target's permissions; if another user owns it, restricted by the umask. A new file
                       follows the umask */
    QN_FILE_PRIVATE, /* 0600 even if the target has other permissions: for users' texts and for code to be run */
} qn_file_access;

/* qn_atomic_file_create - creates the temporary file. It is never readable by more users than the finished file.
 * Also removes this user's temporary files in the folder whose processes have ended. QN_ERR_IO if `path` cannot be
 * written, exists but is not a regular file, or is another user's link in a folder such as /tmp. Free it with
 * qn_atomic_file_free, even after an error. */
qn_status qn_atomic_file_create(qn_atomic_file *file, const char *path, qn_file_access access);

/* qn_atomic_file_write - appends bytes. QN_ERR_IO, with the system's error text, if they cannot be written (disk
 * full). */
qn_status qn_atomic_file_write(qn_atomic_file *file, const void *data, size_t size);

/* qn_file_write_back - starts writing to the disk the data that a file has received since the last call, once this is
 * 16 MiB, so that the final fsync has little to do.
 *
 *   written         number of bytes in the file
 *   written_back    bytes whose writing has been started, 0 at first; updated */
void qn_file_write_back(int fd, uint64_t written, uint64_t *written_back);

/* qn_atomic_file_commit - calls fsync and renames the temporary file to the target. */
qn_status qn_atomic_file_commit(qn_atomic_file *file);

/* qn_atomic_file_free - closes the file. Without qn_atomic_file_commit, removes the temporary file. */
void qn_atomic_file_free(qn_atomic_file *file);

#endif
