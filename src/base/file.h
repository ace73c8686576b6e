/* Files by their paths, which are UTF-8 on every system: open, describe, compare, lock, remove. Data is bytes: no
 * system translates ends of lines. Where a function fails, errno tells why. Descriptors are those of read, write and
 * close; a terminal that is opened does not become the process's own. */
#ifndef QN_BASE_FILE_H
#define QN_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

typedef enum qn_file_kind {
    QN_FILE_REGULAR,
    QN_FILE_FOLDER,
    QN_FILE_OTHER /* a device, a pipe, a terminal */
} qn_file_kind;

/* Which file it is: two of one file are equal. A path and a descriptor may name it in any way. */
typedef struct qn_file_id {
    uint64_t volume, index;
} qn_file_id;

/* Which file, and its state: whether a path still names the same, unchanged file. */
typedef struct qn_file_identity {
    qn_file_id id;
    uint64_t size;
    int64_t modified_seconds;
    uint32_t modified_nanoseconds;
} qn_file_identity;

typedef struct qn_file_info {
    qn_file_kind kind;
    uint64_t size; /* of a regular file */
    qn_file_identity identity;
    unsigned mode; /* permission bits as in POSIX: 0644; 0 if the system has none */
} qn_file_info;

static inline bool qn_file_id_equal(qn_file_id a, qn_file_id b)
{
    return a.volume == b.volume && a.index == b.index;
}

static inline bool qn_file_identity_equal(const qn_file_identity *a, const qn_file_identity *b)
{
    return qn_file_id_equal(a->id, b->id) && a->size == b->size && a->modified_seconds == b->modified_seconds &&
           a->modified_nanoseconds == b->modified_nanoseconds;
}

/* qn_file_describe, qn_file_describe_fd - describe the file that a path, whose links are followed, or a descriptor
 * names. False with errno if there is none. */
bool qn_file_describe(const char *path, qn_file_info *info);
bool qn_file_describe_fd(int fd, qn_file_info *info);

/* qn_file_exists - whether a path names something. */
bool qn_file_exists(const char *path);

/* qn_file_is_readable - whether the process may read it. */
bool qn_file_is_readable(const char *path);

/* qn_file_open_read - opens a file for reading. It does not wait for the writer of a pipe. Returns a descriptor, or -1
 * with errno. */
int qn_file_open_read(const char *path);

/* qn_file_open_append - opens a file, which is created if it is missing, for reading and for writing at its end.
 *
 *   mode   permission bits of a new file, before the umask */
int qn_file_open_append(const char *path, unsigned mode);

/* qn_file_open_log - opens a file, which is created if it is missing, for writing lines at its end. It does not wait
 * for a reader of a pipe: without one it fails. */
int qn_file_open_log(const char *path, unsigned mode);

/* qn_file_stream - fopen for a path in UTF-8 and bytes; `mode` is "r", "w" or "a". Processes that are started do not
 * inherit it. */
FILE *qn_file_stream(const char *path, const char *mode);

/* qn_file_read_at - reads at an offset, without moving the place of read. Returns the number of bytes, which may be
 * fewer than asked for, 0 at the end, -1 with errno. */
ptrdiff_t qn_file_read_at(int fd, void *bytes, size_t n, uint64_t offset);

/* qn_file_write_at - writes at an offset. Returns the number of bytes written, -1 with errno. */
ptrdiff_t qn_file_write_at(int fd, const void *bytes, size_t n, uint64_t offset);

/* qn_file_sync - waits until what was written is on the disk. */
bool qn_file_sync(int fd);

/* qn_file_free_space - bytes that the user may still write to the file's disk; UINT64_MAX if that is unknown. */
uint64_t qn_file_free_space(int fd);

/* qn_file_prefetch - tells the system that a range of the file will be read soon. */
void qn_file_prefetch(int fd, uint64_t offset, uint64_t n);

/* qn_file_reserve - takes disk space for a file that will have `size` bytes. False if there is certainly not enough. */
bool qn_file_reserve(int fd, uint64_t size);

/* qn_file_truncate - sets the size of a file. */
bool qn_file_truncate(int fd, uint64_t size);

/* qn_file_lock - locks an open file until it is closed. False if another process or descriptor has locked it; true on a
 * file system without locks. */
bool qn_file_lock(int fd);

/* qn_file_make_private - restricts an open file to its owner where permissions allow more. False if it cannot be. */
bool qn_file_make_private(int fd);

/* qn_file_remove - removes a file. */
bool qn_file_remove(const char *path);

/* qn_file_make_temporary - creates a file with an unused name, which is written over the last six characters of
 * `path`, "XXXXXX". Its owner alone may read it. Returns a descriptor, or -1 with errno. */
int qn_file_make_temporary(char *path);

/* qn_file_temporary_folder - the system's folder for temporary files that all users share. */
const char *qn_file_temporary_folder(void);

/* qn_file_home - the home folder of a user; NULL: of the user who runs the program. NULL if it is unknown. It is valid
 * until the next call. */
const char *qn_file_home(const char *user);

/* qn_file_is_separator - whether a character separates the folders of a path. */
bool qn_file_is_separator(char c);

/* qn_file_is_absolute - whether a path means the same file in every folder. */
bool qn_file_is_absolute(const char *path);

/* qn_file_name - returns the part of a path after its last separator. */
const char *qn_file_name(const char *path);

/* qn_file_real_path - the absolute path without links; free() it. NULL with errno if there is no such file. */
char *qn_file_real_path(const char *path);

/* qn_folder_make - creates a folder; true if it is there already.
 *
 *   mode   permission bits before the umask */
bool qn_folder_make(const char *path, unsigned mode);

/* A folder whose names are listed; one thread at a time. */
typedef struct qn_folder qn_folder;

/* qn_folder_open - opens a folder to list its names; NULL with errno. Free it with qn_folder_close; NULL is allowed. */
qn_folder *qn_folder_open(const char *path);
void qn_folder_close(qn_folder *folder);

/* qn_folder_next - returns the next name, in the system's order, with "." and ".."; NULL at the end. It is valid until
 * the next call. */
const char *qn_folder_next(qn_folder *folder);

#endif
