/* The cache's folder on POSIX. Cached code runs with this user's rights: owners and modes are checked. */
#include "gpu/code_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

qn_status qn_code_store_place(char **folder)
{
    static const struct place {
        const char *variable, *below;
    } places[] = { { "XDG_CACHE_HOME", "/quern" }, { "HOME", "/.cache/quern" } };
    *folder = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *base = getenv(places[i].variable);
        if (!base || base[0] != '/') /* the XDG specification: relative paths are ignored */
            continue;
        if (asprintf(folder, "%s%s", base, places[i].below) < 0) {
            *folder = NULL;
            return qn_fail(QN_ERR_MEMORY, "no memory for the name of the kernel cache");
        }
        return QN_OK;
    }
    return QN_OK;
}

/* Checks the owner and mode of a file or directory of the cache. Cached code runs with this user's rights: the owner of
 * a file or directory of the cache, and everyone who may write to it, must be this user or root. */
static qn_status check_trust(const char *path, const struct stat *st)
{
    if (st->st_uid != geteuid() && st->st_uid != 0)
        return qn_fail(QN_ERR_INVALID,
                       "%s: belongs to user %u, expected %u or root: kernels of another user are not run", path,
                       (unsigned)st->st_uid, (unsigned)geteuid());
    if (!S_ISLNK(st->st_mode) && st->st_mode & 022)
        return qn_fail(QN_ERR_INVALID, "%s: has mode %03o: kernels that other users can write are not run", path,
                       (unsigned)st->st_mode & 0777u);
    return QN_OK;
}

/* Opens the directory; *fd is -1 if it does not exist. A symbolic link counts if it is a trusted user's. */
static qn_status open_folder(const char *folder, int *fd)
{
    struct stat st;
    *fd = -1;
    if (lstat(folder, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR ? QN_OK
                                                   : qn_fail(QN_ERR_IO, "%s: cannot open: %s", folder, strerror(errno));
    QN_TRY(check_trust(folder, &st));
    const int opened = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0)
        return errno == ENOENT || errno == ENOTDIR ? QN_OK
                                                   : qn_fail(QN_ERR_IO, "%s: cannot open: %s", folder, strerror(errno));
    const qn_status status = fstat(opened, &st) == 0
                                 ? check_trust(folder, &st)
                                 : qn_fail(QN_ERR_IO, "%s: cannot read: %s", folder, strerror(errno));
    if (status)
        close(opened);
    else
        *fd = opened;
    return status;
}

qn_status qn_code_store_check(const char *folder)
{
    int fd;
    QN_TRY(open_folder(folder, &fd));
    if (fd >= 0)
        close(fd);
    return QN_OK;
}

/* Mode 0700, as the XDG specification requires. */
qn_status qn_code_store_make(const char *folder)
{
    char *path = strdup(folder);
    if (!path)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for the name of a directory", folder);
    int failed = 0;
    for (char *at = path; *at && !failed; at++) {
        if (at == path || *at != '/')
            continue;
        *at = '\0';
        failed = mkdir(path, 0700) != 0 && errno != EEXIST ? errno : 0;
        *at = '/';
    }
    if (!failed && mkdir(path, 0700) != 0 && errno != EEXIST)
        failed = errno;
    free(path);
    errno = failed;
    /* EROFS and EACCES may come from parents that exist already; if not, creating the file fails */
    return failed && failed != EROFS && failed != EACCES
               ? qn_fail(QN_ERR_IO, "%s: cannot create this directory: %s", folder, strerror(errno))
               : QN_OK;
}

static qn_status check_open(int fd, const char *path, uint64_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return qn_fail(QN_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return qn_fail(QN_ERR_FORMAT, "%s: is not a regular file", path);
    *bytes = (uint64_t)st.st_size;
    return check_trust(path, &st);
}

qn_status qn_code_store_open(const char *folder, const char *path, const char *name, int *fd, uint64_t *bytes)
{
    int directory;
    *fd = -1;
    QN_TRY(open_folder(folder, &directory));
    if (directory < 0)
        return QN_OK;
    /* O_NOFOLLOW: quern makes no links here. O_NONBLOCK: do not block if it is a FIFO. */
    const int opened = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const int error = errno;
    close(directory);
    if (opened < 0 && error == ENOENT)
        return QN_OK;
    if (opened < 0)
        return error == ELOOP ? qn_fail(QN_ERR_FORMAT, "%s: is a symbolic link, expected a file", path)
                              : qn_fail(QN_ERR_IO, "%s: cannot open: %s", path, strerror(error));
    const qn_status status = check_open(opened, path, bytes);
    if (status)
        close(opened);
    else
        *fd = opened;
    return status;
}

static qn_status clear_open(DIR *dir, const char *folder, bool (*is_ours)(const char *name), size_t *n_files,
                            uint64_t *bytes)
{
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry)
            return errno ? qn_fail(QN_ERR_IO, "%s: cannot list: %s", folder, strerror(errno)) : QN_OK;
        struct stat st;
        if (!is_ours(entry->d_name) || fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) == 0) {
            ++*n_files;
            *bytes += (uint64_t)st.st_size;
        } else if (errno != ENOENT) { /* ENOENT: another process may be clearing too */
            return qn_fail(QN_ERR_IO, "%s/%s: cannot remove: %s", folder, entry->d_name, strerror(errno));
        }
    }
}

qn_status qn_code_store_clear(const char *folder, bool (*is_ours)(const char *name), size_t *n_files, uint64_t *bytes)
{
    *n_files = 0;
    *bytes = 0;
    DIR *dir = opendir(folder);
    if (!dir)
        return errno == ENOENT || errno == ENOTDIR ? QN_OK
                                                   : qn_fail(QN_ERR_IO, "%s: cannot list: %s", folder, strerror(errno));
    const qn_status status = clear_open(dir, folder, is_ours, n_files, bytes);
    closedir(dir);
    return status;
}
