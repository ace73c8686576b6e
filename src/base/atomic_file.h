/* Atomic file replacement: data are written to a temporary file in the target's directory, which is renamed onto the target at
 * the end. Until then the target is unchanged. */
#ifndef QN_BASE_ATOMIC_FILE_H
#define QN_BASE_ATOMIC_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qn_atomic_file {
    char *target;    /* the file that is replaced: the path, or where its links lead */
    char *temporary; /* .NAME.XXXXXX.quern.part in the target's directory */
    bool is_named;   /* the temporary file has that name; else none, and the name is not set */
    int fd;
    uint64_t written, written_back; /* bytes; those whose writing to the disk was begun */
    bool committed;
} qn_atomic_file;

typedef enum qn_file_access {
    QN_FILE_SHARED, /* the permissions of an existing target, as far as the umask goes if it is another user's; a new file's follow the umask */
    QN_FILE_PRIVATE, /* 0600, also where the target has others: text of users, or code that is run */
} qn_file_access;

/* qn_atomic_file_create - create the temporary file; remove those of this user in the folder whose processes have ended. Nobody can read more of it than of the finished file. QN_ERR_IO if `path`
 * cannot be written, or exists and is not a regular file, or is a link of another user in a folder such as /tmp. Free with qn_atomic_file_free, whatever the status. */
qn_status qn_atomic_file_create(qn_atomic_file *file, const char *path, qn_file_access access);

/* qn_atomic_file_write - append bytes. QN_ERR_IO, with the system's error text, if they cannot be written (disk full). */
qn_status qn_atomic_file_write(qn_atomic_file *file, const void *data, size_t size);

/* qn_file_write_back - begin to write to the disk what a file got since the last call, once that is 16 MiB: the last fsync then
 * has little to do. written: bytes that the file has; *written_back: of them those begun, 0 at first. */
void qn_file_write_back(int fd, uint64_t written, uint64_t *written_back);

/* qn_atomic_file_commit - fsync the temporary file and rename it onto the target. */
qn_status qn_atomic_file_commit(qn_atomic_file *file);

/* qn_atomic_file_free - close the file; without qn_atomic_file_commit, remove the temporary file. */
void qn_atomic_file_free(qn_atomic_file *file);

#endif
