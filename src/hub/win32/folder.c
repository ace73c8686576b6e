/* The cache on Windows, by whole paths: its folders are the user's, and quern makes no links. Names from the hub may
 * mean something else here: a device, a stream of a file, another folder; those are refused. A folder that is a link (a
 * junction, a symbolic link) is refused as on other systems. */
#include "hub/folder.h"

#include "base/win32/lock.h"
#include "base/win32/wide.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <windows.h>

/* ---- Paths ---- */

/* Whether a name, without its extension, is that of a device in every folder. */
static bool is_device(const char *name, size_t length)
{
    static const char *const devices[] = { "CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$" };
    const size_t n = strcspn(name, ".") < length ? strcspn(name, ".") : length;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (n == strlen(devices[i]) && !strncasecmp(name, devices[i], n))
            return true;
    return n == 4 && (!strncasecmp(name, "COM", 3) || !strncasecmp(name, "LPT", 3)) && name[3] >= '0' && name[3] <= '9';
}

/* Whether each part of a path means a file of this name. */
static bool is_plain(const char *path)
{
    if (strpbrk(path, "\\:*?\"<>|"))
        return false;
    for (const char *part = path; *part; part += strspn(part, "/")) {
        const size_t length = strcspn(part, "/");
        const char last = length ? part[length - 1] : '.';
        if (last == '.' || last == ' ' || is_device(part, length))
            return false;
        part += length;
    }
    return true;
}

/* The whole path, which the caller frees. NULL with errno. */
static char *whole(const qn_hub_cache *cache, const char *path)
{
    char *all;
    errno = cache->fd < 0 ? ENOENT : is_plain(path) ? ENOMEM : EINVAL;
    if (errno != ENOMEM || asprintf(&all, "%s%s%s", cache->path, *path ? "/" : "", path) < 0)
        return NULL;
    return all;
}

static DWORD attributes(const char *path)
{
    wchar_t *wide = qn_wide_path(path);
    const DWORD found = wide ? GetFileAttributesW(wide) : INVALID_FILE_ATTRIBUTES;
    free(wide);
    return found;
}

static bool is_folder(DWORD found)
{
    return found != INVALID_FILE_ATTRIBUTES && found & FILE_ATTRIBUTE_DIRECTORY &&
           !(found & FILE_ATTRIBUTE_REPARSE_POINT);
}

/* Checks the folders between the cache and the last part of a whole path; with `create` makes those that are missing.
 */
static bool enter(const qn_hub_cache *cache, char *path, bool create)
{
    bool is_there = true;
    char *at = path + strlen(cache->path);
    at += *at == '/';
    for (; is_there && (at = strchr(at, '/')); at++) {
        *at = '\0';
        if (create && attributes(path) == INVALID_FILE_ATTRIBUTES)
            (void)qn_folder_make(path, 0777);
        const DWORD found = attributes(path);
        is_there = is_folder(found);
        errno = is_there ? errno : found == INVALID_FILE_ATTRIBUTES ? ENOENT : ENOTDIR;
        *at = '/';
    }
    return is_there;
}

/* The whole path of a file, whose folders were checked; the caller frees it. NULL with errno. */
static char *reach(const qn_hub_cache *cache, const char *path, bool create)
{
    char *all = whole(cache, path);
    if (all && enter(cache, all, create))
        return all;
    const int error = errno;
    free(all);
    errno = error;
    return NULL;
}

/* ---- The cache ---- */

qn_status qn_hub_cache_open(const char *path, bool create, qn_hub_cache *cache)
{
    qn_file_info info;
    *cache = (qn_hub_cache){ .fd = -1, .path = path };
    char *part = create ? strdup(path) : NULL;
    for (char *at = part; at && *at; at++)
        if (qn_file_is_separator(*at) && at > part && at[-1] != ':') {
            const char separator = *at;
            *at = '\0';
            (void)qn_folder_make(part, 0777); /* the last one tells */
            *at = separator;
        }
    free(part);
    if (create && !qn_folder_make(path, 0777))
        return qn_fail(QN_ERR_IO, "%s: cannot create the folder: %s", path, strerror(errno));
    const bool is_there = qn_file_describe(path, &info);
    if (!is_there && errno == ENOENT)
        return QN_OK;
    if (!is_there || info.kind != QN_FILE_FOLDER)
        return qn_fail(QN_ERR_IO, "%s: cannot open the hub's cache: %s", path,
                       is_there ? strerror(ENOTDIR) : strerror(errno));
    cache->fd = 0;
    return QN_OK;
}

void qn_hub_cache_close(qn_hub_cache *cache)
{
    cache->fd = -1;
}

qn_status qn_hub_make_parent(const qn_hub_cache *cache, const char *path)
{
    char *all = reach(cache, path, true);
    const int error = errno;
    const bool is_made = all;
    free(all);
    return is_made ? QN_OK
                   : qn_fail(QN_ERR_IO, "%s/%s: cannot create its folder: %s", cache->path, path,
                             error == EINVAL ? "Windows has no file of this name" : strerror(error));
}

void qn_hub_each_name(const qn_hub_cache *cache, const char *path, bool (*on_name)(void *user, const char *name),
                      void *user)
{
    char *all = reach(cache, path, false);
    qn_folder *folder = all && is_folder(attributes(all)) ? qn_folder_open(all) : NULL;
    const char *name;
    while (folder && (name = qn_folder_next(folder)))
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !on_name(user, name))
            break;
    qn_folder_close(folder);
    free(all);
}

/* ---- Files ---- */

static int64_t seconds_of(FILETIME time)
{
    const int64_t ticks = (int64_t)((uint64_t)time.dwHighDateTime << 32 | time.dwLowDateTime);
    return ticks / 10000000 - 11644473600; /* since 1601 */
}

bool qn_hub_stat(const qn_hub_cache *cache, const char *path, bool content, qn_hub_status *status)
{
    WIN32_FILE_ATTRIBUTE_DATA found;
    qn_file_info info;
    char *all = reach(cache, path, false);
    wchar_t *wide = all ? qn_wide_path(all) : NULL;
    const bool is_there = wide && GetFileAttributesExW(wide, GetFileExInfoStandard, &found);
    const bool is_link = is_there && found.dwFileAttributes & FILE_ATTRIBUTE_REPARSE_POINT;
    const bool is_described = is_there && qn_file_describe(all, &info);
    free(wide);
    free(all);
    if (!is_described)
        return false;
    *status = (qn_hub_status){ .kind = is_link && !content            ? QN_HUB_LINK
                                       : info.kind == QN_FILE_REGULAR ? QN_HUB_FILE
                                       : info.kind == QN_FILE_FOLDER  ? QN_HUB_FOLDER
                                                                      : QN_HUB_OTHER,
                               .size = info.size,
                               .id = info.identity.id,
                               .used = seconds_of(found.ftLastAccessTime),
                               .modified = seconds_of(found.ftLastWriteTime),
                               .modified_nanoseconds = found.ftLastWriteTime.dwLowDateTime % 10000000 * 100 };
    return true;
}

bool qn_hub_read_link(const qn_hub_cache *cache, const char *path, char *target, size_t size)
{
    (void)cache, (void)path, (void)target, (void)size; /* others' links are read through, not moved or counted */
    return false;
}

bool qn_hub_make_link(const qn_hub_cache *cache, const char *path, const char *target)
{
    (void)cache, (void)path, (void)target;
    errno = EPERM; /* few users of Windows may make them */
    return false;
}

bool qn_hub_rename(const qn_hub_cache *cache, const char *from, const char *to)
{
    char *old = reach(cache, from, false), *fresh = old ? reach(cache, to, false) : NULL;
    wchar_t *wide_old = fresh ? qn_wide_path(old) : NULL, *wide_fresh = wide_old ? qn_wide_path(fresh) : NULL;
    const bool is_renamed = wide_fresh && MoveFileExW(wide_old, wide_fresh, MOVEFILE_REPLACE_EXISTING);
    if (wide_fresh && !is_renamed)
        errno = GetLastError() == ERROR_FILE_NOT_FOUND ? ENOENT : EACCES;
    free(wide_fresh);
    free(wide_old);
    free(fresh);
    free(old);
    return is_renamed;
}

bool qn_hub_unlink(const qn_hub_cache *cache, const char *path, bool folder)
{
    char *all = reach(cache, path, false);
    wchar_t *wide = all && folder ? qn_wide_path(all) : NULL;
    bool is_removed = all && !folder && qn_file_remove(all);
    if (wide) {
        is_removed = RemoveDirectoryW(wide);
        errno = is_removed ? errno : ENOTEMPTY;
    }
    free(wide);
    free(all);
    return is_removed;
}

void qn_hub_touch(const qn_hub_cache *cache, const char *path)
{
    FILETIME now;
    char *all = reach(cache, path, false);
    wchar_t *wide = all ? qn_wide_path(all) : NULL;
    const HANDLE file =
        wide ? CreateFileW(wide, FILE_WRITE_ATTRIBUTES, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                           OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL)
             : INVALID_HANDLE_VALUE;
    if (file != INVALID_HANDLE_VALUE) {
        GetSystemTimeAsFileTime(&now);
        SetFileTime(file, NULL, &now, NULL);
        CloseHandle(file);
    }
    free(wide);
    free(all);
}

bool qn_hub_file_role(const char *path, qn_file_role *role)
{
    return qn_file_role_read(path, role); /* Windows sets the time of use at most once an hour, if at all */
}

size_t qn_hub_read_text(const qn_hub_cache *cache, const char *path, char *text, size_t size)
{
    qn_file_info info;
    char *all = reach(cache, path, false);
    const int fd = all && !(attributes(all) & FILE_ATTRIBUTE_REPARSE_POINT) ? qn_file_open_read(all) : -1;
    ptrdiff_t n = fd >= 0 && qn_file_describe_fd(fd, &info) && info.kind == QN_FILE_REGULAR
                      ? qn_file_read_at(fd, text, size - 1, 0)
                      : 0;
    n = n > 0 ? n : 0;
    text[n] = '\0';
    if (fd >= 0)
        close(fd);
    free(all);
    return (size_t)n;
}

static bool write_all(const char *path, const char *text)
{
    FILE *file = qn_file_stream(path, "w");
    const bool is_written = file && fputs(text, file) >= 0 && !fflush(file) && qn_file_sync(fileno(file));
    return file && !fclose(file) && is_written;
}

qn_status qn_hub_write_text(const qn_hub_cache *cache, const char *path, const char *text)
{
    char *temporary = NULL, *all;
    QN_TRY(qn_hub_make_parent(cache, path));
    const size_t folder = strrchr(path, '/') ? (size_t)(strrchr(path, '/') + 1 - path) : 0;
    if (asprintf(&temporary, "%.*s.quern.%d.part", (int)folder, path, (int)GetCurrentProcessId()) < 0)
        return qn_fail(QN_ERR_MEMORY, "no memory for a path in the hub's cache");
    all = reach(cache, temporary, false);
    const bool is_done = all && write_all(all, text) && qn_hub_rename(cache, temporary, path);
    const int error = errno;
    if (!is_done && all)
        (void)qn_file_remove(all);
    free(all);
    free(temporary);
    return is_done ? QN_OK : qn_fail(QN_ERR_IO, "%s/%s: cannot write: %s", cache->path, path, strerror(error));
}

/* ---- Files that are written and locked ---- */

/* Opens a file for reading and writing, which is created if it is missing. */
static int open_both(const char *path)
{
    wchar_t *wide = qn_wide_path(path);
    const HANDLE file =
        wide ? CreateFileW(wide, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                           NULL, OPEN_ALWAYS, FILE_ATTRIBUTE_NORMAL | FILE_FLAG_OPEN_REPARSE_POINT, NULL)
             : INVALID_HANDLE_VALUE;
    free(wide);
    const int fd =
        file == INVALID_HANDLE_VALUE ? -1 : _open_osfhandle((intptr_t)file, _O_RDWR | _O_BINARY | _O_NOINHERIT);
    if (fd < 0 && file != INVALID_HANDLE_VALUE)
        CloseHandle(file);
    return fd;
}

static bool has_one_name(int fd)
{
    BY_HANDLE_FILE_INFORMATION found;
    return GetFileInformationByHandle((HANDLE)_get_osfhandle(fd), &found) && found.nNumberOfLinks == 1 &&
           !(found.dwFileAttributes & (FILE_ATTRIBUTE_REPARSE_POINT | FILE_ATTRIBUTE_DIRECTORY));
}

qn_status qn_hub_open_own(const qn_hub_cache *cache, const char *path, int *fd, uint64_t *size)
{
    qn_file_info info;
    *fd = -1;
    QN_TRY(qn_hub_make_parent(cache, path));
    char *all = reach(cache, path, false);
    *fd = all ? open_both(all) : -1;
    free(all);
    if (*fd < 0)
        return qn_fail(QN_ERR_IO, "%s/%s: cannot be opened for writing", cache->path, path);
    if (has_one_name(*fd) && qn_file_describe_fd(*fd, &info)) {
        *size = info.size;
        return QN_OK;
    }
    close(*fd);
    *fd = -1;
    return qn_fail(QN_ERR_IO, "%s/%s: is not a regular file with a single name", cache->path, path);
}

/* Whether a path still names an open file. */
static bool names(const qn_hub_cache *cache, const char *path, int fd)
{
    qn_file_info open, found;
    char *all = reach(cache, path, false);
    const bool is_same = all && qn_file_describe_fd(fd, &open) && qn_file_describe(all, &found) &&
                         qn_file_id_equal(open.identity.id, found.identity.id);
    free(all);
    return is_same;
}

/* The lock is huggingface_hub's: byte 0, as msvcrt.locking of Python locks it. The file is removed when that releases
 * it. */
qn_status qn_hub_lock_file(const qn_hub_cache *cache, const char *path, int *fd)
{
    uint64_t size;
    QN_TRY(qn_hub_open_own(cache, path, fd, &size));
    /* A lock file that was removed meanwhile locks nothing. */
    if (qn_lock_byte(*fd, 0) && names(cache, path, *fd))
        return QN_OK;
    close(*fd);
    *fd = -1;
    return QN_OK;
}
