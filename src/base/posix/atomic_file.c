/* Atomic file replacement, by a temporary file and a rename. If the system supports files without a name
 * (O_TMPFILE), the temporary file is named only at the end; otherwise the next process that writes to the folder
 * removes files left by killed ones. */
#include "base/atomic_file.h"

#include "base/splitmix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WRITEBACK_BYTES = 16 << 20, MAX_LINKS = 40 };

/* ---- The target ---- */

/* Whether a link is not to be followed, by the kernel's rule for links in folders such as /tmp (fs.protected_symlinks),
 * which it applies only to open: otherwise the link's creator would choose the file that is written. */
static bool is_foreign(const struct stat *link, const struct stat *folder)
{
    const mode_t shared = S_ISVTX | S_IWOTH;
    return (folder->st_mode & shared) == shared && link->st_uid != geteuid() && link->st_uid != folder->st_uid;
}

#ifdef __APPLE__
enum { O_FOLDER = O_RDONLY, O_LINK = O_RDONLY | O_SYMLINK };

/* By name: macOS before 13 has no freadlink. */
static ssize_t read_link_of(int fd, int at, const char *name, char target[PATH_MAX])
{
    (void)fd;
    return readlinkat(at, name, target, PATH_MAX - 1);
}
#else
enum { O_FOLDER = O_PATH, O_LINK = O_PATH | O_NOFOLLOW };

static ssize_t read_link_of(int fd, int at, const char *name, char target[PATH_MAX])
{
    (void)at, (void)name;
    return readlinkat(fd, "", target, PATH_MAX - 1);
}
#endif

/* Reads the target of the link `name` in a folder; "" if it is not a link. Works on descriptors, so that the link that
 * was checked is the one followed. */
static qn_status read_link(const char *given, const char *folder, const char *name, char target[PATH_MAX])
{
    struct stat in, link;
    const int at = open(folder, O_FOLDER | O_DIRECTORY | O_CLOEXEC);
    const int fd = at >= 0 ? openat(at, name, O_LINK | O_CLOEXEC) : -1;
    const bool is_link = fd >= 0 && fstat(fd, &link) == 0 && S_ISLNK(link.st_mode);
    const bool refused = is_link && (fstat(at, &in) != 0 || is_foreign(&link, &in));
    const ssize_t length = is_link && !refused ? read_link_of(fd, at, name, target) : 0;
    target[length > 0 ? length : 0] = '\0';
    if (fd >= 0)
        close(fd);
    if (at >= 0)
        close(at);
    return refused
               ? qn_fail(QN_ERR_IO,
                         "%s: is a symbolic link of another user in a folder that all can write to; it is not followed",
                         given)
               : QN_OK;
}

/* If *path is a symbolic link, replaces *path, which it frees, by its target, and sets *is_link. `given` is for error
 * texts. */
static qn_status follow(const char *given, char **path, bool *is_link)
{
    char target[PATH_MAX], *next = NULL;
    const char *slash = strrchr(*path, '/');
    const int n = slash ? (int)(slash - *path) + 1 : 0;
    char *folder = n ? strndup(*path, (size_t)n) : strdup(".");
    if (!folder)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory to write it", given);
    qn_status status = read_link(given, folder, *path + n, target);
    free(folder);
    *is_link = !status && *target;
    if (!*is_link)
        return status;
    if (asprintf(&next, "%.*s%s", *target == '/' ? 0 : n, *path, target) < 0)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory to write it", given);
    free(*path);
    *path = next;
    return QN_OK;
}

/* Finds the file that a path names; free() it. Symbolic links are followed, so that rename replaces the file and not
 * the link. A dangling link is refused: /dev/stdout may be one if its file was removed. */
static qn_status resolve(const char *path, char **target)
{
    struct stat st;
    *target = strdup(path);
    if (!*target)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory to write it", path);
    for (int n = 0; n < MAX_LINKS; n++) {
        bool is_link;
        QN_TRY(follow(path, target, &is_link));
        if (is_link)
            continue;
        if (n && lstat(*target, &st) != 0)
            return qn_fail(QN_ERR_IO,
                           "%s: is a symbolic link to a file that does not exist, expected a regular file or none",
                           path);
        return QN_OK;
    }
    return qn_fail(QN_ERR_IO, "%s: leads to more than %d symbolic links", path, MAX_LINKS);
}

/* ---- The temporary file ---- */

/* A temporary name is .NAME.XXXXXX.quern.part; NAME is cut if it would exceed NAME_MAX. */
#define ENDING ".quern.part"
enum { RANDOM = 6, ADDED = sizeof "..XXXXXX" ENDING, ATTEMPTS = 100 };

static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";

/* Writes six random characters, others for each attempt. O_EXCL and linkat detect a collision with another process. */
static void random_suffix(char text[RANDOM + 1], int attempt)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t state = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    state ^= (uint64_t)getpid() << 40 ^ (uint64_t)attempt << 56;
    uint64_t z = qn_splitmix(&state);
    for (size_t i = 0; i < RANDOM; i++, z /= 36)
        text[i] = digits[z % 36];
    text[RANDOM] = '\0';
}

static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Writes a new temporary name next to the target. `name` has strlen(target) + ADDED bytes. */
static void temporary_name(const char *target, int attempt, char *name)
{
    char random[RANDOM + 1];
    const size_t folder = folder_length(target);
    random_suffix(random, attempt);
    snprintf(name, strlen(target) + ADDED, "%.*s.%.*s.%s" ENDING, (int)folder, target, NAME_MAX - ADDED + 1,
             target + folder, random);
}

static char *folder_of(const char *path)
{
    const size_t n = folder_length(path);
    return n ? strndup(path, n) : strdup(".");
}

/* ---- Files left by killed processes ---- */

static bool is_temporary(const char *name)
{
    const size_t n = strlen(name);
    if (n < ADDED || name[0] != '.' || strcmp(name + n - strlen(ENDING), ENDING) != 0)
        return false;
    const char *random = name + n - strlen(ENDING) - RANDOM;
    return random[-1] == '.' && strspn(random, digits) == RANDOM;
}

/* Removes a temporary file whose writer has ended: a writer holds a lock of its file. On file systems without locks,
 * nothing is removed. */
static void remove_if_abandoned(int folder, const char *name)
{
    struct stat st, named;
    const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_ino == st.st_ino &&
        named.st_dev == st.st_dev)
        (void)unlinkat(folder, name, 0);
    close(fd);
}

static void remove_abandoned(const char *target)
{
    char *path = folder_of(target);
    DIR *folder = path ? opendir(path) : NULL;
    const struct dirent *entry;
    while (folder && (entry = readdir(folder)))
        if (is_temporary(entry->d_name))
            remove_if_abandoned(dirfd(folder), entry->d_name);
    if (folder)
        closedir(folder);
    free(path);
}

/* ---- Creating it ---- */

/* False if another process has the lock: it considered the file abandoned just before. On a file system without
 * locks, true. */
static bool lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

/* Links a file without a name to the temporary name. */
static bool link_temporary(const qn_atomic_file *file, int fd)
{
    char source[32];
    snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        temporary_name(file->target, attempt, file->temporary);
        if (linkat(AT_FDCWD, source, AT_FDCWD, file->temporary, AT_SYMLINK_FOLLOW) == 0)
            return true;
        if (errno != EEXIST)
            return false;
    }
    return false;
}

#ifdef O_TMPFILE
/* Whether files without a name can be named here. Tried with an empty file, since after hours of work it would be
 * too late. */
static bool can_link(const qn_atomic_file *file, const char *folder)
{
    const int fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    const bool linked = fd >= 0 && lock(fd) && link_temporary(file, fd);
    if (linked)
        (void)unlink(file->temporary);
    if (fd >= 0)
        close(fd);
    return linked;
}

/* Creates a file without a name: nothing is left of it if the process is killed. */
static bool create_unnamed(qn_atomic_file *file, mode_t mode)
{
    char *folder = folder_of(file->target);
    if (folder && can_link(file, folder))
        file->fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
    free(folder);
    if (file->fd >= 0)
        (void)lock(file->fd); /* for the time between naming and renaming */
    return file->fd >= 0;
}
#else
static bool create_unnamed(qn_atomic_file *file, mode_t mode)
{
    (void)file, (void)mode;
    return false;
}
#endif

/* Creates a named file. Not with mkstemp, which always uses mode 0600: the permissions of a new shared file must
 * follow the umask. */
static qn_status create_named(qn_atomic_file *file, mode_t mode)
{
    for (int attempt = 0; attempt < ATTEMPTS && file->fd < 0; attempt++) {
        struct stat st;
        temporary_name(file->target, attempt, file->temporary);
        file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (file->fd < 0 && errno != EEXIST)
            break;
        if (file->fd >= 0 && (!lock(file->fd) || fstat(file->fd, &st) != 0 || st.st_nlink == 0)) {
            close(file->fd);
            file->fd = -1;
            errno = EEXIST;
        }
    }
    if (file->fd < 0)
        return qn_fail(QN_ERR_IO, "%s: cannot create '%s' to write it: %s", file->target, file->temporary,
                       strerror(errno));
    file->is_named = true;
    return QN_OK;
}

static qn_status create_temporary(qn_atomic_file *file, mode_t mode)
{
    file->temporary = malloc(strlen(file->target) + ADDED);
    if (!file->temporary)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for a temporary name", file->target);
    remove_abandoned(file->target);
    return create_unnamed(file, mode) ? QN_OK : create_named(file, mode);
}

/* Whether the target is in a folder such as /tmp, whose files only their owners may replace. */
static bool cannot_be_replaced(const char *target, const struct stat *st)
{
    struct stat in;
    char *folder = folder_of(target);
    const uid_t user = geteuid();
    const bool is_kept = folder && stat(folder, &in) == 0 && in.st_mode & S_ISVTX && user != 0 && st->st_uid != user &&
                         in.st_uid != user;
    free(folder);
    return is_kept;
}

qn_status qn_atomic_file_create(qn_atomic_file *file, const char *path, qn_file_access access)
{
    *file = (qn_atomic_file){ .fd = -1 };
    if (path[0] == '\0' || path[strlen(path) - 1] == '/')
        return qn_fail(QN_ERR_IO, "'%s' does not name a file to write", path);
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return qn_fail(QN_ERR_IO, "%s: is %s, expected a regular file or none", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    QN_TRY(resolve(path, &file->target));
    const bool exists = lstat(file->target, &st) == 0;
    /* Refuses a name that is too long, too: the temporary name, which is cut, would be accepted. */
    if (!exists && errno != ENOENT)
        return qn_fail(QN_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    if (exists && cannot_be_replaced(file->target, &st))
        return qn_fail(QN_ERR_IO, "%s: is another user's file in a folder where only its owner may replace it", path);
    /* If another user owns the file, the new one is not readable by more users than the umask allows. */
    const bool is_own = exists && S_ISREG(st.st_mode) && st.st_uid == geteuid();
    const bool keeps_mode = is_own && access == QN_FILE_SHARED;
    const mode_t shared_mode = is_own ? 0600 : exists ? st.st_mode & 0666 : 0666;
    QN_TRY(create_temporary(file, access == QN_FILE_PRIVATE ? 0600 : shared_mode));
    if (keeps_mode && fchmod(file->fd, st.st_mode & 0777) != 0)
        return qn_fail(QN_ERR_IO, "%s: cannot give its replacement the same permissions: %s", path, strerror(errno));
    return QN_OK;
}

void qn_file_write_back(int fd, uint64_t written, uint64_t *written_back)
{
    if (written - *written_back < WRITEBACK_BYTES)
        return;
#ifdef SYNC_FILE_RANGE_WRITE
    (void)sync_file_range(fd, (off_t)*written_back, (off_t)(written - *written_back), SYNC_FILE_RANGE_WRITE);
#else
    (void)fd;
#endif
    *written_back = written;
}

qn_status qn_atomic_file_write(qn_atomic_file *file, const void *data, size_t size)
{
    const uint8_t *at = data;
    while (size > 0) {
        /* Linux writes at most 2 GiB at a time */
        const ssize_t n = write(file->fd, at, size < (1u << 30) ? size : 1u << 30);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return qn_fail(QN_ERR_IO, "%s: cannot write: %s", file->target, strerror(errno));
        at += n;
        size -= (size_t)n;
        file->written += (uint64_t)n;
    }
    qn_file_write_back(file->fd, file->written, &file->written_back);
    return QN_OK;
}

/* Calls fsync for the directory, so that the rename survives a system crash. */
static void sync_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *directory = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    const int fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fsync(fd); /* some file systems do not support it; the rename is done in any case */
        close(fd);
    }
    free(directory);
}

qn_status qn_atomic_file_commit(qn_atomic_file *file)
{
    if (fsync(file->fd) != 0)
        return qn_fail(QN_ERR_IO, "%s: cannot write: %s", file->target, strerror(errno));
    if (!file->is_named && !link_temporary(file, file->fd))
        return qn_fail(QN_ERR_IO, "%s: cannot create '%s' to write it: %s", file->target, file->temporary,
                       strerror(errno));
    file->is_named = true;
    if (rename(file->temporary, file->target) != 0)
        return qn_fail(QN_ERR_IO, "%s: cannot rename '%s' to it: %s", file->target, file->temporary, strerror(errno));
    file->committed = true;
    sync_directory(file->target);
    return QN_OK;
}

void qn_atomic_file_free(qn_atomic_file *file)
{
    if (file->fd >= 0) {
        if (file->is_named && !file->committed)
            unlink(file->temporary);
        close(file->fd);
    }
    free(file->temporary);
    free(file->target);
    *file = (qn_atomic_file){ .fd = -1 };
}
