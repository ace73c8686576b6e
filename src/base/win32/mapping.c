/* Mapped files. Windows refuses to cut a file that is mapped, so only a failing disk can lose data: that raises an
 * exception (EXCEPTION_IN_PAGE_ERROR), not a signal. */
#include "base/mapping.h"

#include "base/win32/wide.h"

#include <io.h>
#include <stdlib.h>
#include <windows.h>

struct qn_mapping {
    const uint8_t *data;
};

qn_status qn_mapping_create(const char *path, int fd, size_t size, qn_mapping **out)
{
    *out = NULL;
    qn_mapping *m = malloc(sizeof *m);
    if (!m)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory to map it", path);
    const HANDLE section = CreateFileMappingW((HANDLE)_get_osfhandle(fd), NULL, PAGE_READONLY,
                                              (DWORD)((uint64_t)size >> 32), (DWORD)size, NULL);
    m->data = section ? MapViewOfFile(section, FILE_MAP_READ, 0, 0, size) : NULL;
    if (!m->data) {
        const qn_status status = qn_fail(QN_ERR_IO, "%s: cannot map its %zu bytes: %s", path, size, qn_windows_error());
        if (section)
            CloseHandle(section);
        free(m);
        return status;
    }
    CloseHandle(section); /* the view keeps it */
    *out = m;
    return QN_OK;
}

void qn_mapping_free(qn_mapping *m)
{
    if (!m)
        return;
    UnmapViewOfFile(m->data);
    free(m);
}

const uint8_t *qn_mapping_data(const qn_mapping *m)
{
    return m->data;
}

bool qn_mapping_is_lost(const qn_mapping *m)
{
    (void)m;
    return false;
}

bool qn_mapping_replace(void *address)
{
    (void)address;
    return false;
}

void qn_mapping_drop(const void *begin, size_t bytes)
{
    /* Of pages that are not locked: removes them from the working set. It always reports failure. */
    if (bytes)
        (void)VirtualUnlock((void *)(uintptr_t)begin, bytes);
}
