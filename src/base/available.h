/* How much memory this process may still take. */
#ifndef QN_BASE_AVAILABLE_H
#define QN_BASE_AVAILABLE_H

#include <stdint.h>

/* qn_available_memory - bytes that can be allocated without swapping: what the system has available (MemAvailable of
 * /proc/meminfo), or what the process's control groups (v2, or the memory controller of v1) leave, if that is less. UINT64_MAX
 * where nothing is known. */
uint64_t qn_available_memory(void);

/* qn_available_memory_in - the same with the files of a system below `root`. */
uint64_t qn_available_memory_in(const char *root);

/* qn_available_addresses - bytes of addresses that the process's limit (RLIMIT_AS) leaves; UINT64_MAX without a limit. */
uint64_t qn_available_addresses(void);

#endif
