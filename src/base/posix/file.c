/* Files by POSIX; Linux and macOS differ only in hints to their caches. */
#include "base/file.h"

#include "base/posix/stat_times.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void describe(const struct stat *st, qn_file_info *info)
{
    *info = (qn_file_info){
        .kind = S_ISREG(st->st_mode)   ? QN_FILE_REGULAR
                : S_ISDIR(st->st_mode) ? QN_FILE_FOLDER
                                       : QN_FILE_OTHER,
        .size = (uint64_t)st->st_size,
        .identity = { .id = { (uint64_t)st->st_dev, (uint64_t)st->st_ino },
                      .size = (uint64_t)st->st_size,
                      .modified_seconds = (int64_t)QN_MODIFIED(st).tv_sec,
                      .modified_nanoseconds = (uint32_t)QN_MODIFIED(st).tv_nsec },
        .mode = st->st_mode & 0777,
    };
}

bool qn_file_describe(const char *path, qn_file_info *info)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return false;
    describe(&st, info);
    return true;
}

bool qn_file_describe_fd(int fd, qn_file_info *info)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return false;
    describe(&st, info);
    return true;
}

bool qn_file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool qn_file_is_readable(const char *path)
{
    return access(path, R_OK) == 0;
}

int qn_file_open_read(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

int qn_file_open_append(const char *path, unsigned mode)
{
    return open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, (mode_t)mode);
}

int qn_file_open_log(const char *path, unsigned mode)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, (mode_t)mode);
}

FILE *qn_file_stream(const char *path, const char *mode)
{
    const int how = *mode == 'r' ? O_RDONLY : O_WRONLY | O_CREAT | (*mode == 'a' ? O_APPEND : O_TRUNC);
    const int fd = open(path, how | O_CLOEXEC | O_NOCTTY, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, mode);
    if (fd >= 0 && !file)
        close(fd);
    return file;
}

ptrdiff_t qn_file_read_at(int fd, void *bytes, size_t n, uint64_t offset)
{
    return pread(fd, bytes, n, (off_t)offset);
}

ptrdiff_t qn_file_write_at(int fd, const void *bytes, size_t n, uint64_t offset)
{
    return pwrite(fd, bytes, n, (off_t)offset);
}

bool qn_file_sync(int fd)
{
#ifdef __APPLE__
    return fsync(fd) == 0;
#else
    return fdatasync(fd) == 0;
#endif
}

uint64_t qn_file_free_space(int fd)
{
    struct statvfs fs;
    return fstatvfs(fd, &fs) || !fs.f_blocks ? UINT64_MAX : (uint64_t)fs.f_bavail * fs.f_frsize;
}

void qn_file_prefetch(int fd, uint64_t offset, uint64_t n)
{
#ifdef POSIX_FADV_WILLNEED
    (void)posix_fadvise(fd, (off_t)offset, (off_t)n, POSIX_FADV_WILLNEED);
#else
    (void)fd, (void)offset, (void)n;
#endif
}

bool qn_file_reserve(int fd, uint64_t size)
{
#ifdef __linux__
    return fallocate(fd, 0, 0, (off_t)size) == 0 || (errno != ENOSPC && errno != EFBIG && errno != EDQUOT);
#else
    (void)fd, (void)size;
    return true;
#endif
}

bool qn_file_truncate(int fd, uint64_t size)
{
    return ftruncate(fd, (off_t)size) == 0;
}

bool qn_file_lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

bool qn_file_make_private(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (!(st.st_mode & 077) || fchmod(fd, 0600) == 0);
}

bool qn_file_remove(const char *path)
{
    return unlink(path) == 0;
}

int qn_file_make_temporary(char *path)
{
    return mkstemp(path);
}

const char *qn_file_temporary_folder(void)
{
    return P_tmpdir;
}

const char *qn_file_home(const char *user)
{
    const char *given = user ? NULL : getenv("HOME");
    if (given && *given)
        return given;
    const struct passwd *found = user ? getpwnam(user) : getpwuid(getuid());
    return found ? found->pw_dir : NULL;
}

bool qn_file_is_separator(char c)
{
    return c == '/';
}

bool qn_file_is_absolute(const char *path)
{
    return *path == '/';
}

const char *qn_file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

char *qn_file_real_path(const char *path)
{
    return realpath(path, NULL);
}

/* ---- Folders ---- */

bool qn_folder_make(const char *path, unsigned mode)
{
    return mkdir(path, (mode_t)mode) == 0 || errno == EEXIST;
}

qn_folder *qn_folder_open(const char *path)
{
    return (qn_folder *)opendir(path);
}

void qn_folder_close(qn_folder *folder)
{
    if (folder)
        closedir((DIR *)folder);
}

const char *qn_folder_next(qn_folder *folder)
{
    const struct dirent *entry = readdir((DIR *)folder);
    return entry ? entry->d_name : NULL;
}
