/* Files by the functions of Windows for UTF-16 paths. Other programs may rename or remove a file that is open here. */
#include "base/file.h"

#include "base/environment.h"
#include "base/random.h"
#include "base/win32/lock.h"
#include "base/win32/wide.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

enum { SHARE_ALL = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE };

/* ---- Description ---- */

static uint64_t join(DWORD high, DWORD low)
{
    return (uint64_t)high << 32 | low;
}

static bool describe(HANDLE handle, qn_file_info *info)
{
    BY_HANDLE_FILE_INFORMATION found;
    *info = (qn_file_info){ .kind = QN_FILE_OTHER };
    const DWORD type = GetFileType(handle);
    if (type != FILE_TYPE_DISK) {
        /* Each pipe and console counts as a file of its own. */
        info->identity.id = (qn_file_id){ UINT64_MAX, (uint64_t)(uintptr_t)handle };
        if (type != FILE_TYPE_UNKNOWN || GetLastError() == NO_ERROR)
            return true;
        qn_set_errno();
        return false;
    }
    if (!GetFileInformationByHandle(handle, &found)) {
        qn_set_errno();
        return false;
    }
    const uint64_t ticks = join(found.ftLastWriteTime.dwHighDateTime, found.ftLastWriteTime.dwLowDateTime);
    const bool is_folder = found.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY;
    info->kind = is_folder ? QN_FILE_FOLDER : QN_FILE_REGULAR;
    info->size = is_folder ? 0 : join(found.nFileSizeHigh, found.nFileSizeLow);
    info->identity = (qn_file_identity){
        .id = { found.dwVolumeSerialNumber, join(found.nFileIndexHigh, found.nFileIndexLow) },
        .size = info->size,
        .modified_seconds = (int64_t)(ticks / 10000000),
        .modified_nanoseconds = (uint32_t)(ticks % 10000000) * 100,
    };
    return true;
}

bool qn_file_describe(const char *path, qn_file_info *info)
{
    wchar_t *wide = qn_wide_path(path);
    if (!wide)
        return false;
    /* Backup semantics: folders, too. */
    const HANDLE handle =
        CreateFileW(wide, FILE_READ_ATTRIBUTES, SHARE_ALL, NULL, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    free(wide);
    if (handle == INVALID_HANDLE_VALUE) {
        qn_set_errno();
        return false;
    }
    const bool is_described = describe(handle, info);
    CloseHandle(handle);
    return is_described;
}

bool qn_file_describe_fd(int fd, qn_file_info *info)
{
    const HANDLE handle = (HANDLE)_get_osfhandle(fd);
    if (handle != INVALID_HANDLE_VALUE)
        return describe(handle, info);
    errno = EBADF;
    return false;
}

bool qn_file_exists(const char *path)
{
    wchar_t *wide = qn_wide_path(path);
    const bool exists = wide && GetFileAttributesW(wide) != INVALID_FILE_ATTRIBUTES;
    if (wide && !exists)
        qn_set_errno();
    free(wide);
    return exists;
}

bool qn_file_is_readable(const char *path)
{
    const int fd = qn_file_open_read(path);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* ---- Open files ---- */

/* Opens a file and makes a descriptor of it, which started processes do not inherit. */
static int open_file(const char *path, DWORD access, DWORD how, int flags)
{
    wchar_t *wide = qn_wide_path(path);
    if (!wide)
        return -1;
    HANDLE handle = CreateFileW(wide, access, SHARE_ALL, NULL, how, FILE_ATTRIBUTE_NORMAL, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        qn_set_errno();
        const DWORD found = GetFileAttributesW(wide);
        if (found != INVALID_FILE_ATTRIBUTES && found & FILE_ATTRIBUTE_DIRECTORY)
            errno = EISDIR;
    }
    free(wide);
    if (handle == INVALID_HANDLE_VALUE)
        return -1;
    const int fd = _open_osfhandle((intptr_t)handle, flags | _O_BINARY | _O_NOINHERIT);
    if (fd < 0)
        CloseHandle(handle);
    return fd;
}

int qn_file_open_read(const char *path)
{
    return open_file(path, GENERIC_READ, OPEN_EXISTING, _O_RDONLY);
}

int qn_file_open_append(const char *path, unsigned mode)
{
    (void)mode; /* a new file has the permissions of its folder */
    return open_file(path, GENERIC_READ | GENERIC_WRITE, OPEN_ALWAYS, _O_RDWR | _O_APPEND);
}

int qn_file_open_log(const char *path, unsigned mode)
{
    return qn_file_open_append(path, mode);
}

FILE *qn_file_stream(const char *path, const char *mode)
{
    const bool reads = *mode == 'r', appends = *mode == 'a';
    const int fd = open_file(path, reads ? GENERIC_READ : GENERIC_WRITE,
                             reads     ? OPEN_EXISTING
                             : appends ? OPEN_ALWAYS
                                       : CREATE_ALWAYS,
                             reads     ? _O_RDONLY
                             : appends ? _O_WRONLY | _O_APPEND
                                       : _O_WRONLY);
    FILE *file = fd < 0 ? NULL : _fdopen(fd, reads ? "rb" : appends ? "ab" : "wb");
    if (fd >= 0 && !file)
        close(fd);
    return file;
}

ptrdiff_t qn_file_read_at(int fd, void *bytes, size_t n, uint64_t offset)
{
    OVERLAPPED at = { .Offset = (DWORD)offset, .OffsetHigh = (DWORD)(offset >> 32) };
    DWORD done = 0;
    if (ReadFile((HANDLE)_get_osfhandle(fd), bytes, n < (1u << 30) ? (DWORD)n : 1u << 30, &done, &at))
        return (ptrdiff_t)done;
    if (GetLastError() == ERROR_HANDLE_EOF)
        return 0;
    qn_set_errno();
    return -1;
}

ptrdiff_t qn_file_write_at(int fd, const void *bytes, size_t n, uint64_t offset)
{
    OVERLAPPED at = { .Offset = (DWORD)offset, .OffsetHigh = (DWORD)(offset >> 32) };
    DWORD done = 0;
    if (WriteFile((HANDLE)_get_osfhandle(fd), bytes, n < (1u << 30) ? (DWORD)n : 1u << 30, &done, &at))
        return (ptrdiff_t)done;
    qn_set_errno();
    return -1;
}

bool qn_file_sync(int fd)
{
    if (FlushFileBuffers((HANDLE)_get_osfhandle(fd)))
        return true;
    qn_set_errno();
    return false;
}

uint64_t qn_file_free_space(int fd)
{
    wchar_t path[1024];
    ULARGE_INTEGER bytes;
    const DWORD room = sizeof path / sizeof *path,
                length = GetFinalPathNameByHandleW((HANDLE)_get_osfhandle(fd), path, room, 0);
    wchar_t *const slash = length && length < room ? wcsrchr(path, L'\\') : NULL;
    if (!slash)
        return UINT64_MAX;
    slash[1] = L'\0';
    return GetDiskFreeSpaceExW(path, &bytes, NULL, NULL) ? bytes.QuadPart : UINT64_MAX;
}

void qn_file_prefetch(int fd, uint64_t offset, uint64_t n)
{
    (void)fd, (void)offset, (void)n; /* Windows takes no such hint for open files */
}

bool qn_file_reserve(int fd, uint64_t size)
{
    FILE_ALLOCATION_INFO wanted = { .AllocationSize = { .QuadPart = (LONGLONG)size } };
    if (SetFileInformationByHandle((HANDLE)_get_osfhandle(fd), FileAllocationInfo, &wanted, sizeof wanted) ||
        GetLastError() != ERROR_DISK_FULL)
        return true;
    errno = ENOSPC;
    return false;
}

bool qn_file_truncate(int fd, uint64_t size)
{
    FILE_END_OF_FILE_INFO end = { .EndOfFile = { .QuadPart = (LONGLONG)size } };
    if (SetFileInformationByHandle((HANDLE)_get_osfhandle(fd), FileEndOfFileInfo, &end, sizeof end))
        return true;
    qn_set_errno();
    return false;
}

bool qn_lock_byte(int fd, uint64_t offset)
{
    OVERLAPPED at = { .Offset = (DWORD)offset, .OffsetHigh = (DWORD)(offset >> 32) };
    return LockFileEx((HANDLE)_get_osfhandle(fd), LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at) ||
           (GetLastError() != ERROR_LOCK_VIOLATION && GetLastError() != ERROR_IO_PENDING);
}

bool qn_file_lock(int fd)
{
    return qn_lock_byte(fd, (uint64_t)0x7fffffff << 32); /* far behind any data: others can still read the file */
}

bool qn_file_make_private(int fd)
{
    (void)fd; /* the user's folders give no access to others */
    return true;
}

bool qn_file_remove(const char *path)
{
    wchar_t *wide = qn_wide_path(path);
    const bool is_removed = wide && DeleteFileW(wide);
    if (wide && !is_removed)
        qn_set_errno();
    free(wide);
    return is_removed;
}

int qn_file_make_temporary(char *path)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz012345";
    char *const name = path + strlen(path) - 6;
    for (int attempt = 0; attempt < 100; attempt++) {
        unsigned char bytes[6];
        if (!qn_random_bytes(bytes, sizeof bytes))
            break;
        for (size_t i = 0; i < sizeof bytes; i++)
            name[i] = letters[bytes[i] % 32];
        const int fd = open_file(path, GENERIC_READ | GENERIC_WRITE, CREATE_NEW, _O_RDWR);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    errno = EEXIST;
    return -1;
}

const char *qn_file_temporary_folder(void)
{
    const char *folder = qn_environment("TEMP");
    return folder ? folder : "C:/Windows/Temp";
}

/* ---- Names ---- */

const char *qn_file_home(const char *user)
{
    return user ? NULL : qn_environment("USERPROFILE");
}

bool qn_file_is_separator(char c)
{
    return c == '/' || c == '\\';
}

bool qn_file_is_absolute(const char *path)
{
    const bool has_drive = *path && path[1] == ':';
    return qn_file_is_separator(path[has_drive ? 2 : 0]);
}

const char *qn_file_name(const char *path)
{
    const char *name = path;
    for (const char *at = path; *at; at++)
        if (qn_file_is_separator(*at) || (*at == ':' && at == path + 1))
            name = at + 1;
    return name;
}

char *qn_file_real_path(const char *path)
{
    wchar_t *wide = qn_wide_path(path), full[1024];
    const HANDLE handle =
        wide ? CreateFileW(wide, FILE_READ_ATTRIBUTES, SHARE_ALL, NULL, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL)
             : INVALID_HANDLE_VALUE;
    free(wide);
    const DWORD room = sizeof full / sizeof *full;
    const DWORD length = handle == INVALID_HANDLE_VALUE ? 0 : GetFinalPathNameByHandleW(handle, full, room, 0);
    const bool is_found = length > 0 && length < room;
    if (!is_found)
        qn_set_errno();
    if (handle != INVALID_HANDLE_VALUE)
        CloseHandle(handle);
    return is_found ? qn_narrow(!wcsncmp(full, L"\\\\?\\", 4) && full[5] == L':' ? full + 4 : full) : NULL;
}

/* ---- Folders ---- */

bool qn_folder_make(const char *path, unsigned mode)
{
    (void)mode;
    wchar_t *wide = qn_wide_path(path);
    bool is_made = wide && CreateDirectoryW(wide, NULL);
    if (wide && !is_made) {
        qn_set_errno();
        is_made = errno == EEXIST;
    }
    free(wide);
    return is_made;
}

struct qn_folder {
    HANDLE search;
    WIN32_FIND_DATAW found;
    bool is_first;
    char *name;
};

qn_folder *qn_folder_open(const char *path)
{
    qn_folder *folder = calloc(1, sizeof *folder);
    const size_t length = strlen(path);
    char *pattern = malloc(length + 3);
    wchar_t *wide = NULL;
    if (pattern) {
        memcpy(pattern, path, length);
        memcpy(pattern + length, "/*", 3);
        wide = qn_wide_path(pattern);
    }
    if (folder && wide) {
        folder->search = FindFirstFileW(wide, &folder->found);
        folder->is_first = true;
        if (folder->search == INVALID_HANDLE_VALUE)
            qn_set_errno();
    } else if (!folder || !pattern) {
        errno = ENOMEM;
    }
    if (folder && (!wide || folder->search == INVALID_HANDLE_VALUE)) {
        free(folder);
        folder = NULL;
    }
    free(wide);
    free(pattern);
    return folder;
}

void qn_folder_close(qn_folder *folder)
{
    if (!folder)
        return;
    FindClose(folder->search);
    free(folder->name);
    free(folder);
}

const char *qn_folder_next(qn_folder *folder)
{
    if (!folder->is_first && !FindNextFileW(folder->search, &folder->found))
        return NULL;
    folder->is_first = false;
    free(folder->name);
    folder->name = qn_narrow(folder->found.cFileName);
    return folder->name;
}
