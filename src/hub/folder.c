/* Opens the cache's folders as descriptors, and accesses the names in them. */
#include "hub/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FOLDER = O_PATH | O_DIRECTORY | O_CLOEXEC };

/* ---- The cache ---- */

static qn_status make_cache(const char *path)
{
    char *part = strdup(path);
    qn_status status = part ? QN_OK : qn_fail(QN_ERR_MEMORY, "no memory for a path in the hub's cache");
    for (char *end = part; end && *end && !status;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        const char slash = *end;
        *end = '\0';
        if (*part && mkdir(part, 0777) && errno != EEXIST)
            status = qn_fail(QN_ERR_IO, "%s: cannot create the folder: %s", part, strerror(errno));
        *end = slash;
    }
    free(part);
    return status;
}

qn_status qn_hub_cache_open(const char *path, bool create, qn_hub_cache *cache)
{
    *cache = (qn_hub_cache){ .fd = -1, .path = path };
    if (create)
        QN_TRY(make_cache(path));
    cache->fd = open(path, FOLDER);
    if (cache->fd < 0 && (create || errno != ENOENT))
        return qn_fail(QN_ERR_IO, "%s: cannot open the hub's cache: %s", path, strerror(errno));
    return QN_OK;
}

void qn_hub_cache_close(qn_hub_cache *cache)
{
    if (cache->fd >= 0)
        close(cache->fd);
    cache->fd = -1;
}

/* ---- Folders ---- */

/* Closes a folder; preserves errno. */
static void leave(int fd)
{
    const int error = errno;
    close(fd);
    errno = error;
}

static int enter(int at, const char *name, bool create)
{
    const int fd = openat(at, name, FOLDER | O_NOFOLLOW);
    if (fd >= 0 || errno != ENOENT || !create || (mkdirat(at, name, 0777) && errno != EEXIST))
        return fd;
    return openat(at, name, FOLDER | O_NOFOLLOW);
}

/* Opens the folder at the first `length` bytes of a path. -1 with errno on failure. */
static int walk(const qn_hub_cache *cache, const char *path, size_t length, bool create)
{
    int fd = openat(cache->fd, ".", FOLDER);
    for (size_t begin = 0; fd >= 0 && begin < length;) {
        const char *slash = memchr(path + begin, '/', length - begin);
        const size_t n = slash ? (size_t)(slash - path) - begin : length - begin;
        char name[NAME_MAX + 1];
        int next = -1;
        errno = ENAMETOOLONG;
        if (n < sizeof name) {
            memcpy(name, path + begin, n);
            name[n] = '\0';
            next = enter(fd, name, create);
        }
        leave(fd);
        fd = next;
        begin += n + 1;
    }
    return fd;
}

static int parent(const qn_hub_cache *cache, const char *path, bool create, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    return walk(cache, path, slash ? (size_t)(slash - path) : 0, create);
}

int qn_hub_parent(const qn_hub_cache *cache, const char *path, const char **name)
{
    return parent(cache, path, false, name);
}

qn_status qn_hub_make_parent(const qn_hub_cache *cache, const char *path, const char **name, int *fd)
{
    *fd = parent(cache, path, true, name);
    const int length = (int)(*name - path);
    if (*fd < 0 && errno == ENOTDIR)
        return qn_fail(QN_ERR_IO, "%s/%.*s: a part of it is a symbolic link or a file, expected folders", cache->path,
                       length, path);
    return *fd >= 0 ? QN_OK
                    : qn_fail(QN_ERR_IO, "%s/%.*s: cannot create the folder: %s", cache->path, length, path,
                              strerror(errno));
}

DIR *qn_hub_opendir(const qn_hub_cache *cache, const char *path)
{
    const int at = walk(cache, path, strlen(path), false);
    const int fd = at >= 0 ? openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && !folder)
        close(fd);
    if (at >= 0)
        close(at);
    return folder;
}

/* ---- Names in folders ---- */

bool qn_hub_stat(const qn_hub_cache *cache, const char *path, bool content, struct stat *st)
{
    const char *name;
    const int at = qn_hub_parent(cache, path, &name);
    const bool found = at >= 0 && fstatat(at, name, st, content ? 0 : AT_SYMLINK_NOFOLLOW) == 0;
    if (at >= 0)
        close(at);
    return found;
}

bool qn_hub_read_link(const qn_hub_cache *cache, const char *path, char *target, size_t size)
{
    const char *name;
    const int at = qn_hub_parent(cache, path, &name);
    const ssize_t length = at >= 0 ? readlinkat(at, name, target, size) : -1;
    if (at >= 0)
        close(at);
    if (length < 0 || (size_t)length >= size)
        return false;
    target[length] = '\0';
    return true;
}

bool qn_hub_unlink(const qn_hub_cache *cache, const char *path, bool folder)
{
    const char *name;
    const int at = qn_hub_parent(cache, path, &name);
    const bool done = at >= 0 && unlinkat(at, name, folder ? AT_REMOVEDIR : 0) == 0;
    if (at >= 0)
        leave(at);
    return done;
}

size_t qn_hub_read_text(const qn_hub_cache *cache, const char *path, char *text, size_t size)
{
    const char *name;
    struct stat st;
    const int at = qn_hub_parent(cache, path, &name);
    /* O_NONBLOCK: opening a pipe would wait for its writer. */
    const int fd = at >= 0 ? openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
    ssize_t n = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, text, size - 1) : 0;
    if (n < 0)
        n = 0;
    text[n] = '\0';
    if (fd >= 0)
        close(fd);
    if (at >= 0)
        close(at);
    return (size_t)n;
}

static qn_status write_and_rename(int at, const char *temporary, const char *name, const char *text)
{
    const size_t length = strlen(text);
    (void)unlinkat(at, temporary, 0); /* left by a process that was interrupted */
    const int fd = openat(at, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    bool done = fd >= 0 && write(fd, text, length) == (ssize_t)length && fsync(fd) == 0;
    if (fd >= 0)
        leave(fd);
    done = done && renameat(at, temporary, at, name) == 0;
    if (done || fd < 0)
        return done ? QN_OK : QN_ERR_IO;
    const int error = errno;
    (void)unlinkat(at, temporary, 0);
    errno = error;
    return QN_ERR_IO;
}

qn_status qn_hub_write_text(const qn_hub_cache *cache, const char *path, const char *text)
{
    const char *name;
    char temporary[40];
    int at;
    QN_TRY(qn_hub_make_parent(cache, path, &name, &at));
    snprintf(temporary, sizeof temporary, ".quern.%d.part", (int)getpid());
    const qn_status status = write_and_rename(at, temporary, name, text);
    leave(at);
    return status ? qn_fail(status, "%s/%s: cannot write: %s", cache->path, path, strerror(errno)) : QN_OK;
}
