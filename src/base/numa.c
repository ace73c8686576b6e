/* Picks the processors of a NUMA node from a topology. The system's folder applies what was picked. */
#include "base/numa.h"

#include <string.h>

size_t qn_numa_pick(const qn_topology *topology, int id, bool picked[QN_MAX_PROCESSORS])
{
    int node = topology->at[0].node;
    size_t n = 0;
    for (size_t i = 0; i < topology->n; i++)
        if (topology->at[i].id == id)
            node = topology->at[i].node;
    memset(picked, 0, QN_MAX_PROCESSORS * sizeof *picked);
    for (size_t i = 0; i < topology->n; i++)
        if (topology->at[i].node == node) {
            picked[topology->at[i].id] = true;
            n++;
        }
    return n;
}
