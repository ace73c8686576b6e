/* Available memory by GlobalMemoryStatusEx, and the limit of the process's job. There are no files of the system:
 * another root than "" has none. */
#include "base/available.h"

#include <windows.h>

uint64_t qn_available_memory_in(const char *root)
{
    MEMORYSTATUSEX status = { .dwLength = sizeof status };
    if (*root || !GlobalMemoryStatusEx(&status))
        return UINT64_MAX;
    /* What may be committed is less where the swap file is full or off. */
    return status.ullAvailPhys < status.ullAvailPageFile ? status.ullAvailPhys : status.ullAvailPageFile;
}

uint64_t qn_available_memory(void)
{
    return qn_available_memory_in("");
}

uint64_t qn_available_addresses(void)
{
    return UINT64_MAX;
}
