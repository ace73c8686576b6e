/* The amount of memory that this process may still use. */
#ifndef QN_BASE_AVAILABLE_H
#define QN_BASE_AVAILABLE_H

#include <stdint.h>

/* qn_available_memory - the number of bytes that can be allocated without swapping: the system's available memory
 * (MemAvailable of /proc/meminfo), or the rest in the process's control groups (v2, or the memory controller of v1)
 * if that is less. UINT64_MAX if neither is known. */
uint64_t qn_available_memory(void);

/* qn_available_memory_in - the same, with the system's files below `root`. */
uint64_t qn_available_memory_in(const char *root);

/* qn_available_addresses - the number of bytes of addresses left under the process's limit (RLIMIT_AS); UINT64_MAX
 * without a limit. */
uint64_t qn_available_addresses(void);

#endif
