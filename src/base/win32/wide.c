/* Conversion of paths and errors. */
#include "base/win32/wide.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

/* Without a prefix, CreateDirectory takes 12 characters fewer than MAX_PATH. */
enum { PLAIN_PATH = MAX_PATH - 12 };

/* The absolute form of a long path, with the prefix that lifts the limit. Frees `plain`. */
static wchar_t *make_long(wchar_t *plain)
{
    static const wchar_t local[] = L"\\\\?\\", share[] = L"\\\\?\\UNC";
    const DWORD need = GetFullPathNameW(plain, 0, NULL, NULL);
    wchar_t *full = need ? malloc((need + sizeof share / sizeof *share) * sizeof *full) : NULL;
    if (!full) {
        free(plain);
        errno = ENOMEM;
        return NULL;
    }
    wchar_t *const at = full + sizeof share / sizeof *share - 1;
    const DWORD length = GetFullPathNameW(plain, need, at, NULL);
    const bool is_share = at[0] == L'\\' && at[1] == L'\\';
    free(plain);
    if (!length || length >= need) {
        free(full);
        qn_set_errno();
        return NULL;
    }
    /* \\server\share becomes \\?\UNC\server\share */
    const wchar_t *prefix = is_share ? share : local;
    const wchar_t *rest = is_share ? at + 1 : at;
    const size_t n = wcslen(prefix);
    memmove(full + n, rest, (wcslen(rest) + 1) * sizeof *full);
    memcpy(full, prefix, n * sizeof *full);
    return full;
}

wchar_t *qn_wide_path(const char *path)
{
    const int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
    wchar_t *wide = n > 0 ? malloc((size_t)n * sizeof *wide) : NULL;
    if (!wide) {
        errno = n > 0 ? ENOMEM : EILSEQ;
        return NULL;
    }
    MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, n);
    const bool has_prefix = !wcsncmp(wide, L"\\\\?\\", 4);
    return n > PLAIN_PATH && !has_prefix ? make_long(wide) : wide;
}

char *qn_narrow(const wchar_t *text)
{
    const int n = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
    char *narrow = n > 0 ? malloc((size_t)n) : NULL;
    if (!narrow) {
        errno = ENOMEM;
        return NULL;
    }
    WideCharToMultiByte(CP_UTF8, 0, text, -1, narrow, n, NULL, NULL);
    return narrow;
}

void qn_set_errno(void)
{
    switch (GetLastError()) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
    case ERROR_BAD_NETPATH:
    case ERROR_BAD_NET_NAME:
    case ERROR_INVALID_DRIVE: errno = ENOENT; break;
    case ERROR_INVALID_NAME:
    case ERROR_DIRECTORY: errno = ENOTDIR; break;
    case ERROR_ACCESS_DENIED:
    case ERROR_WRITE_PROTECT: errno = EACCES; break;
    case ERROR_SHARING_VIOLATION:
    case ERROR_LOCK_VIOLATION:
    case ERROR_USER_MAPPED_FILE: errno = EBUSY; break;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS: errno = EEXIST; break;
    case ERROR_NOT_ENOUGH_MEMORY:
    case ERROR_COMMITMENT_LIMIT:
    case ERROR_OUTOFMEMORY: errno = ENOMEM; break;
    case ERROR_DISK_FULL:
    case ERROR_HANDLE_DISK_FULL: errno = ENOSPC; break;
    case ERROR_FILENAME_EXCED_RANGE: errno = ENAMETOOLONG; break;
    case ERROR_DIR_NOT_EMPTY: errno = ENOTEMPTY; break;
    case ERROR_BROKEN_PIPE:
    case ERROR_NO_DATA: errno = EPIPE; break;
    case ERROR_INVALID_HANDLE: errno = EBADF; break;
    default: errno = EIO;
    }
}

const char *qn_windows_error(void)
{
    static _Thread_local char text[256];
    wchar_t wide[256];
    const DWORD error = GetLastError();
    DWORD n = FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, NULL, error, 0, wide,
                             sizeof wide / sizeof *wide - 1, NULL);
    while (n && (wide[n - 1] == L'\n' || wide[n - 1] == L'\r' || wide[n - 1] == L'.'))
        n--;
    wide[n] = L'\0';
    if (!n || !WideCharToMultiByte(CP_UTF8, 0, wide, -1, text, sizeof text, NULL, NULL))
        strcpy(text, "unknown error of Windows");
    return text;
}
