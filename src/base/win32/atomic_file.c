/* Atomic file replacement, by a temporary file and a rename with POSIX semantics
 * where the file system has them: the target may be open elsewhere. New files have the permissions of their folder. */
#include "base/atomic_file.h"

#include "base/file.h"
#include "base/random.h"
#include "base/win32/wide.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

enum { ATTEMPTS = 100, ADDED = 32 };

/* FileRenameInfoEx and its flags, and FileDispositionInfoEx: Windows 10 1607, newer than the headers of mingw-w64. */
enum { RENAME_EX = 22, RENAME_REPLACE = 1, RENAME_POSIX = 2 };

struct rename_info {
    DWORD flags;
    HANDLE root;
    DWORD length; /* bytes of the name */
    WCHAR name[];
};

/* .NAME.XXXXXX.quern.part in the target's folder. */
static bool temporary_name(const char *target, char *out)
{
    unsigned char bytes[6];
    const char *name = qn_file_name(target);
    const size_t folder = (size_t)(name - target);
    if (!qn_random_bytes(bytes, sizeof bytes))
        return false;
    memcpy(out, target, folder);
    out += folder;
    *out++ = '.';
    strcpy(out, name);
    out += strlen(name);
    *out++ = '.';
    for (size_t i = 0; i < sizeof bytes; i++)
        *out++ = "abcdefghijklmnopqrstuvwxyz012345"[bytes[i] % 32];
    strcpy(out, ".quern.part");
    return true;
}

static int create(const char *path)
{
    wchar_t *wide = qn_wide_path(path);
    if (!wide)
        return -1;
    /* DELETE: it is renamed by its handle. */
    const HANDLE handle = CreateFileW(wide, GENERIC_WRITE | DELETE, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL,
                                      CREATE_NEW, FILE_ATTRIBUTE_NORMAL, NULL);
    if (handle == INVALID_HANDLE_VALUE)
        qn_set_errno();
    free(wide);
    if (handle == INVALID_HANDLE_VALUE)
        return -1;
    const int fd = _open_osfhandle((intptr_t)handle, _O_WRONLY | _O_BINARY | _O_NOINHERIT);
    if (fd < 0)
        CloseHandle(handle);
    return fd;
}

qn_status qn_atomic_file_create(qn_atomic_file *file, const char *path, qn_file_access access)
{
    qn_file_info info;
    (void)access;
    *file = (qn_atomic_file){ .fd = -1 };
    if (path[0] == '\0' || qn_file_is_separator(path[strlen(path) - 1]))
        return qn_fail(QN_ERR_IO, "'%s' does not name a file to write", path);
    if (qn_file_describe(path, &info)) {
        if (info.kind != QN_FILE_REGULAR)
            return qn_fail(QN_ERR_IO, "%s: is %s, expected a regular file or none", path,
                           info.kind == QN_FILE_FOLDER ? "a directory" : "a device or pipe");
        file->target = qn_file_real_path(path); /* a link's target is replaced, not the link */
    }
    if (!file->target)
        file->target = strdup(path);
    file->temporary = file->target ? malloc(strlen(file->target) + ADDED) : NULL;
    if (!file->temporary)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory to write it", path);
    for (int attempt = 0; attempt < ATTEMPTS && file->fd < 0; attempt++) {
        if (!temporary_name(file->target, file->temporary))
            return qn_fail(QN_ERR_IO, "%s: no random numbers for a temporary name", path);
        file->fd = create(file->temporary);
        if (file->fd < 0 && errno != EEXIST)
            break;
    }
    if (file->fd < 0)
        return qn_fail(QN_ERR_IO, "%s: cannot create '%s' to write it: %s", file->target, file->temporary,
                       strerror(errno));
    file->is_named = true;
    return QN_OK;
}

void qn_file_write_back(int fd, uint64_t written, uint64_t *written_back)
{
    (void)fd;
    *written_back = written; /* Windows writes back by itself */
}

qn_status qn_atomic_file_write(qn_atomic_file *file, const void *data, size_t size)
{
    const uint8_t *at = data;
    const HANDLE handle = (HANDLE)_get_osfhandle(file->fd);
    while (size > 0) {
        DWORD n = 0;
        if (!WriteFile(handle, at, size < (1u << 30) ? (DWORD)size : 1u << 30, &n, NULL))
            return qn_fail(QN_ERR_IO, "%s: cannot write: %s", file->target, qn_windows_error());
        at += n;
        size -= n;
        file->written += n;
    }
    return QN_OK;
}

/* Renames by the handle, so that a target which others have open is replaced; the older way where that is not known. */
static bool replace(const qn_atomic_file *file, const wchar_t *from, const wchar_t *to)
{
    const size_t bytes = wcslen(to) * sizeof *to;
    struct rename_info *info = calloc(1, sizeof *info + bytes + sizeof *to);
    bool is_done = false;
    if (info) {
        info->flags = RENAME_REPLACE | RENAME_POSIX;
        info->length = (DWORD)bytes;
        memcpy(info->name, to, bytes);
        is_done = SetFileInformationByHandle((HANDLE)_get_osfhandle(file->fd), (FILE_INFO_BY_HANDLE_CLASS)RENAME_EX,
                                             info, (DWORD)(sizeof *info + bytes + sizeof *to));
        free(info);
    }
    return is_done || MoveFileExW(from, to, MOVEFILE_REPLACE_EXISTING);
}

qn_status qn_atomic_file_commit(qn_atomic_file *file)
{
    if (!FlushFileBuffers((HANDLE)_get_osfhandle(file->fd)))
        return qn_fail(QN_ERR_IO, "%s: cannot write: %s", file->target, qn_windows_error());
    wchar_t *from = qn_wide_path(file->temporary), *to = qn_wide_path(file->target);
    file->committed = from && to && replace(file, from, to);
    const qn_status status = file->committed ? QN_OK
                                             : qn_fail(QN_ERR_IO, "%s: cannot rename '%s' to it: %s", file->target,
                                                       file->temporary, qn_windows_error());
    free(from);
    free(to);
    return status;
}

void qn_atomic_file_free(qn_atomic_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        if (file->is_named && !file->committed)
            qn_file_remove(file->temporary);
    }
    free(file->temporary);
    free(file->target);
    *file = (qn_atomic_file){ .fd = -1 };
}
