/* Host memory for a pool (cache/pool.h): item addresses are pointers that the CPU can read. */
#ifndef QN_CACHE_HOST_MEMORY_H
#define QN_CACHE_HOST_MEMORY_H

#include "cache/pool.h"

/* qn_host_pool_memory - returns functions for qn_pool_create. They have no state: any number of pools may use them. */
qn_pool_memory qn_host_pool_memory(void);

#endif
