/* How much memory this process may still take. */
#ifndef QN_BASE_AVAILABLE_H
#define QN_BASE_AVAILABLE_H

#include <stdint.h>

/* qn_available_memory - bytes that can be allocated without swapping: what the system has available (MemAvailable of
 * /proc/meminfo), or what the process's control groups (v2, or the memory controller of v1) or its address space limit leave, if
 * that is less. UINT64_MAX where nothing is known. */
uint64_t qn_available_memory(void);

/* qn_available_memory_in - the same with the files of a system below `root` ("" for this system), without the address space
 * limit. */
uint64_t qn_available_memory_in(const char *root);

#endif
