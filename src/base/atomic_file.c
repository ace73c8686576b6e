/* Atomic file replacement by a temporary file and a rename. */
#include "base/atomic_file.h"

#include "base/splitmix.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WRITEBACK_BYTES = 16 << 20 };

/* Symbolic links are resolved, so that rename replaces the file and not the link. */
static char *resolve(const char *path)
{
    char *resolved = realpath(path, NULL);
    return resolved ? resolved : strdup(path);
}

/* Whether path is a symbolic link to nothing. rename would replace the link itself: /dev/stdout, if the file behind it was removed. */
static bool is_dangling(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && stat(path, &st) != 0;
}

/* Six random characters. O_EXCL detects a collision with another process. */
static void random_suffix(char text[7], int attempt)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t state = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    state ^= (uint64_t)getpid() << 40 ^ (uint64_t)attempt << 56;
    uint64_t z = qn_splitmix(&state);
    for (size_t i = 0; i < 6; i++, z /= 36)
        text[i] = digits[z % 36];
    text[6] = '\0';
}

/* Not mkstemp: it creates files of mode 0600, and a new shared file's permissions must follow the umask. */
static qn_status create_temporary(qn_atomic_file *file, mode_t mode)
{
    const char *slash = strrchr(file->target, '/');
    const char *name = slash ? slash + 1 : file->target;
    const size_t directory = (size_t)(name - file->target), size = strlen(file->target) + sizeof "..XXXXXX.part";
    file->temporary = malloc(size);
    if (!file->temporary)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for a temporary name", file->target);
    for (int attempt = 0; attempt < 100; attempt++) {
        char random[7];
        random_suffix(random, attempt);
        /* The name is truncated, so that the temporary name does not exceed NAME_MAX. */
        snprintf(file->temporary, size, "%.*s.%.*s.%s.part", (int)directory, file->target, NAME_MAX - 16, name, random);
        file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (file->fd >= 0 || errno != EEXIST)
            break;
    }
    if (file->fd < 0)
        return qn_fail(QN_ERR_IO, "%s: cannot create '%s' to write it: %m", file->target, file->temporary);
    return QN_OK;
}

qn_status qn_atomic_file_create(qn_atomic_file *file, const char *path, qn_file_access access)
{
    *file = (qn_atomic_file){ .fd = -1 };
    if (path[0] == '\0' || path[strlen(path) - 1] == '/')
        return qn_fail(QN_ERR_IO, "'%s' does not name a file to write", path);
    file->target = resolve(path);
    if (!file->target)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory to write it", path);
    struct stat st;
    if (is_dangling(file->target))
        return qn_fail(QN_ERR_IO, "%s: is a symbolic link to a file that does not exist, expected a regular file or none",
                       path);
    const bool exists = stat(file->target, &st) == 0;
    if (exists && !S_ISREG(st.st_mode))
        return qn_fail(QN_ERR_IO, "%s: is %s, expected a regular file or none", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    const bool keeps_mode = exists && access == QN_FILE_SHARED;
    QN_TRY(create_temporary(file, exists || access == QN_FILE_PRIVATE ? 0600 : 0666));
    if (keeps_mode && fchmod(file->fd, st.st_mode & 0777) != 0)
        return qn_fail(QN_ERR_IO, "%s: cannot give '%s' its permissions: %m", path, file->temporary);
    return QN_OK;
}

void qn_file_write_back(int fd, uint64_t written, uint64_t *written_back)
{
    if (written - *written_back < WRITEBACK_BYTES)
        return;
    (void)sync_file_range(fd, (off_t)*written_back, (off_t)(written - *written_back), SYNC_FILE_RANGE_WRITE);
    *written_back = written;
}

qn_status qn_atomic_file_write(qn_atomic_file *file, const void *data, size_t size)
{
    const uint8_t *at = data;
    while (size > 0) {
        const ssize_t n = write(file->fd, at, size < (1u << 30) ? size : 1u << 30); /* Linux writes at most 2 GiB at a time */
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return qn_fail(QN_ERR_IO, "%s: cannot write: %m", file->target);
        at += n;
        size -= (size_t)n;
        file->written += (uint64_t)n;
    }
    qn_file_write_back(file->fd, file->written, &file->written_back);
    return QN_OK;
}

/* fsync of the directory, so that the rename survives a crash of the system. */
static void sync_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *directory = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    const int fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fsync(fd); /* not supported by some file systems; the rename is done in any case */
        close(fd);
    }
    free(directory);
}

qn_status qn_atomic_file_commit(qn_atomic_file *file)
{
    if (fsync(file->fd) != 0)
        return qn_fail(QN_ERR_IO, "%s: cannot write: %m", file->target);
    if (rename(file->temporary, file->target) != 0)
        return qn_fail(QN_ERR_IO, "%s: cannot rename '%s' to it: %m", file->target, file->temporary);
    file->committed = true;
    sync_directory(file->target);
    return QN_OK;
}

void qn_atomic_file_free(qn_atomic_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        if (!file->committed)
            unlink(file->temporary);
    }
    free(file->temporary);
    free(file->target);
    *file = (qn_atomic_file){ .fd = -1 };
}
