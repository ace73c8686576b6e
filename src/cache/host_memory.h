/* The memory of a pool (cache/pool.h) in host memory: items at addresses that the CPU reads. */
#ifndef QN_CACHE_HOST_MEMORY_H
#define QN_CACHE_HOST_MEMORY_H

#include "cache/pool.h"

qn_pool_memory qn_host_pool_memory(void);

#endif
