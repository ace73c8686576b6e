/* Opens the cache's folders as descriptors, and accesses the names in them. */
#include "hub/folder.h"

#include "base/posix/stat_times.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef O_PATH
#define O_PATH O_RDONLY /* on macOS folders have to be readable */
#endif
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

/* Opens the parent folder of a path. Returns its descriptor, or -1 with errno. *name is the last component. */
static int parent(const qn_hub_cache *cache, const char *path, bool create, const char **name)
{
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    return walk(cache, path, slash ? (size_t)(slash - path) : 0, create);
}

static qn_status make_parent(const qn_hub_cache *cache, const char *path, const char **name, int *fd)
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

qn_status qn_hub_make_parent(const qn_hub_cache *cache, const char *path)
{
    const char *name;
    int at;
    QN_TRY(make_parent(cache, path, &name, &at));
    close(at);
    return QN_OK;
}

void qn_hub_each_name(const qn_hub_cache *cache, const char *path, bool (*on_name)(void *user, const char *name),
                      void *user)
{
    const int at = walk(cache, path, strlen(path), false);
    const int fd = at >= 0 ? openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    while (folder && (entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && !on_name(user, entry->d_name))
            break;
    if (folder)
        closedir(folder);
    else if (fd >= 0)
        close(fd);
    if (at >= 0)
        close(at);
}

/* ---- Names in folders ---- */

static qn_hub_status status_of(const struct stat *st)
{
    return (qn_hub_status){ .kind = S_ISREG(st->st_mode)   ? QN_HUB_FILE
                                    : S_ISDIR(st->st_mode) ? QN_HUB_FOLDER
                                    : S_ISLNK(st->st_mode) ? QN_HUB_LINK
                                                           : QN_HUB_OTHER,
                            .size = (uint64_t)st->st_size,
                            .id = { (uint64_t)st->st_dev, (uint64_t)st->st_ino },
                            .used = st->st_atime,
                            .modified = QN_MODIFIED(st).tv_sec,
                            .modified_nanoseconds = (uint32_t)QN_MODIFIED(st).tv_nsec };
}

bool qn_hub_stat(const qn_hub_cache *cache, const char *path, bool content, qn_hub_status *status)
{
    const char *name;
    struct stat st;
    const int at = parent(cache, path, false, &name);
    const bool found = at >= 0 && fstatat(at, name, &st, content ? 0 : AT_SYMLINK_NOFOLLOW) == 0;
    if (at >= 0)
        leave(at);
    if (found)
        *status = status_of(&st);
    return found;
}

bool qn_hub_read_link(const qn_hub_cache *cache, const char *path, char *target, size_t size)
{
    const char *name;
    const int at = parent(cache, path, false, &name);
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
    const int at = parent(cache, path, false, &name);
    const bool done = at >= 0 && unlinkat(at, name, folder ? AT_REMOVEDIR : 0) == 0;
    if (at >= 0)
        leave(at);
    return done;
}

size_t qn_hub_read_text(const qn_hub_cache *cache, const char *path, char *text, size_t size)
{
    const char *name;
    struct stat st;
    const int at = parent(cache, path, false, &name);
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
    QN_TRY(make_parent(cache, path, &name, &at));
    snprintf(temporary, sizeof temporary, ".quern.%d.part", (int)getpid());
    const qn_status status = write_and_rename(at, temporary, name, text);
    leave(at);
    return status ? qn_fail(status, "%s/%s: cannot write: %s", cache->path, path, strerror(errno)) : QN_OK;
}

bool qn_hub_make_link(const qn_hub_cache *cache, const char *path, const char *target)
{
    const char *name;
    const int at = parent(cache, path, false, &name);
    const bool made = at >= 0 && symlinkat(target, at, name) == 0;
    if (at >= 0)
        leave(at);
    return made;
}

bool qn_hub_rename(const qn_hub_cache *cache, const char *from, const char *to)
{
    const char *name, *new_name;
    const int at = parent(cache, from, false, &name), into = at >= 0 ? parent(cache, to, false, &new_name) : -1;
    const bool renamed = into >= 0 && renameat(at, name, into, new_name) == 0;
    if (into >= 0)
        leave(into);
    if (at >= 0)
        leave(at);
    return renamed;
}

void qn_hub_touch(const qn_hub_cache *cache, const char *path)
{
    const struct timespec now[2] = { { .tv_nsec = UTIME_NOW }, { .tv_nsec = UTIME_OMIT } };
    const char *name;
    const int at = parent(cache, path, false, &name);
    if (at < 0)
        return;
    (void)utimensat(at, name, now, 0);
    close(at);
}

bool qn_hub_file_role(const char *path, qn_file_role *role)
{
    struct stat st;
    if (stat(path, &st))
        return false;
    const bool known = qn_file_role_read(path, role);
    const struct timespec before[2] = { QN_ACCESSED(&st), { .tv_nsec = UTIME_OMIT } };
    (void)utimensat(AT_FDCWD, path, before, 0);
    return known;
}

/* ---- Files that are written and locked ---- */

enum { OWN = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY };

static qn_status check_own(const qn_hub_cache *cache, const char *path, int fd, uint64_t *size)
{
    struct stat st;
    if (fd < 0 || fstat(fd, &st))
        return qn_fail(QN_ERR_IO, "%s/%s: cannot open: %s", cache->path, path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_nlink != 1)
        return qn_fail(QN_ERR_IO, "%s/%s: is not a regular file with a single name", cache->path, path);
    *size = (uint64_t)st.st_size;
    return QN_OK;
}

qn_status qn_hub_open_own(const qn_hub_cache *cache, const char *path, int *fd, uint64_t *size)
{
    const char *name;
    int at;
    *fd = -1;
    QN_TRY(make_parent(cache, path, &name, &at));
    *fd = openat(at, name, OWN, 0666);
    leave(at);
    const qn_status status = check_own(cache, path, *fd, size);
    if (status && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

qn_status qn_hub_lock_file(const qn_hub_cache *cache, const char *path, int *fd)
{
    struct stat st;
    const char *name;
    int at;
    qn_status status = QN_OK;
    *fd = -1;
    QN_TRY(make_parent(cache, path, &name, &at));
    *fd = openat(at, name, OWN, 0664);
    leave(at);
    if (*fd < 0)
        return qn_fail(QN_ERR_IO, "%s/%s: cannot open the lock: %s", cache->path, path, strerror(errno));
    bool taken = false;
    if (flock(*fd, LOCK_EX | LOCK_NB)) {
        /* On a file system without locks, two downloads at once only waste one: blobs are renamed when complete. */
        taken = errno == EWOULDBLOCK || errno == EACCES || errno == EINTR;
        if (!taken && errno != ENOSYS && errno != ENOTSUP && errno != ENOLCK)
            status = qn_fail(QN_ERR_IO, "%s/%s: cannot lock: %s", cache->path, path, strerror(errno));
    }
    /* A lock file that was removed meanwhile locks nothing. */
    if (taken || status || (fstat(*fd, &st) == 0 && st.st_nlink == 0)) {
        close(*fd);
        *fd = -1;
    }
    return status;
}
