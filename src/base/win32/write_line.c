/* Writes lines. Windows cannot tell whether a write to a pipe would block, except by the free part of its buffer. One
 * lock for all descriptors: one thread at a time checks and writes, so that the check stays valid. */
#include "base/write_line.h"

#include <io.h>
#include <pthread.h>
#include <windows.h>
/* after windows.h, whose types it needs */
#include <winternl.h>

/* Information of a pipe, as NtQueryInformationFile gives it (FilePipeLocalInformation). */
struct pipe_state {
    ULONG type, configuration, most_instances, instances, in_quota, read_available, out_quota, write_available, state,
        end;
};

enum { PIPE_STATE = 24 };

/* Whether a pipe has room for the line; other files never block. */
static bool is_ready(HANDLE handle, size_t length)
{
    struct pipe_state state;
    IO_STATUS_BLOCK status;
    if (GetFileType(handle) != FILE_TYPE_PIPE)
        return true;
    if (NtQueryInformationFile(handle, &status, &state, sizeof state, (FILE_INFORMATION_CLASS)PIPE_STATE))
        return true;
    return state.write_available >= length;
}

bool qn_write_line(int fd, const char *line, size_t length)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const HANDLE handle = (HANDLE)_get_osfhandle(fd);
    DWORD done = 0;
    pthread_mutex_lock(&lock);
    const bool is_written = handle != INVALID_HANDLE_VALUE && is_ready(handle, length) &&
                            WriteFile(handle, line, (DWORD)length, &done, NULL) && done == length;
    pthread_mutex_unlock(&lock);
    return is_written;
}
