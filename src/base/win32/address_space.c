/* Reserved address space by VirtualAlloc. */
#include "base/address_space.h"

#include "base/win32/wide.h"

#include <stdint.h>
#include <windows.h>

/* A range is freed by the address that the system gave, so the range must start at the alignment. Another thread may
 * take the aligned addresses between the two calls: then it is tried again. */
enum { ATTEMPTS = 16 };

qn_status qn_address_space_reserve(size_t bytes, void **address)
{
    const size_t more = QN_COMMIT_GRANULE;
    *address = NULL;
    if (bytes > SIZE_MAX - more)
        return qn_fail(QN_ERR_MEMORY, "%zu bytes of addresses cannot be reserved", bytes);
    for (int attempt = 0; attempt < ATTEMPTS && !*address; attempt++) {
        char *at = VirtualAlloc(NULL, bytes + more, MEM_RESERVE, PAGE_NOACCESS);
        if (!at)
            break;
        char *const aligned = at + (more - (uintptr_t)at % more) % more;
        VirtualFree(at, 0, MEM_RELEASE);
        *address = VirtualAlloc(aligned, bytes, MEM_RESERVE, PAGE_NOACCESS);
    }
    return *address
               ? QN_OK
               : qn_fail(QN_ERR_MEMORY, "%zu MiB of addresses cannot be reserved: %s", bytes >> 20, qn_windows_error());
}

void qn_address_space_free(void *address, size_t bytes)
{
    (void)bytes;
    if (address)
        VirtualFree(address, 0, MEM_RELEASE);
}

qn_status qn_address_space_commit(void *granule)
{
    if (!VirtualAlloc(granule, QN_COMMIT_GRANULE, MEM_COMMIT, PAGE_READWRITE))
        return qn_fail(QN_ERR_MEMORY, "%d MiB of memory cannot be committed: %s", QN_COMMIT_GRANULE >> 20,
                       qn_windows_error());
    return QN_OK;
}

void qn_address_space_release(void *granule)
{
    VirtualFree(granule, QN_COMMIT_GRANULE, MEM_DECOMMIT);
}

/* Large pages of Windows need a privilege, and are never swapped. */
void qn_advise_huge(void *memory, size_t bytes)
{
    (void)memory, (void)bytes;
}

void qn_advise_small(void *memory, size_t bytes)
{
    (void)memory, (void)bytes;
}

size_t qn_page_bytes(void)
{
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
}
