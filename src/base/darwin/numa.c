/* NUMA: Macs have one node. */
#include "base/numa.h"

qn_status qn_numa_apply(qn_numa mode, const qn_topology *topology)
{
    return mode == QN_NUMA_OFF || topology->n_nodes < 2
               ? QN_OK
               : qn_fail(QN_ERR_UNSUPPORTED, "NUMA is not supported on this system");
}
