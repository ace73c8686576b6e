/* Reads the topology by GetLogicalProcessorInformationEx, for the processor group that the process started in. There
 * are no files of the system: below another root than "" is one processor. */
#include "base/topology.h"

#include "base/cpu.h"

#include <stdint.h>
#include <stdlib.h>
#include <windows.h>

typedef SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX record;

/* An efficient core compared with a performance core, as in posix/topology.c: Windows ranks the classes only. */
static const float slower_class = 0.5f;

enum { GROUP_BITS = 8 * sizeof(KAFFINITY) };

static KAFFINITY read_affinity(void)
{
    DWORD_PTR process, system;
    return GetProcessAffinityMask(GetCurrentProcess(), &process, &system) && process ? process : 1;
}

static WORD own_group(void)
{
    GROUP_AFFINITY affinity;
    return GetThreadGroupAffinity(GetCurrentThread(), &affinity) ? affinity.Group : 0;
}

/* All records of a relation, one after another; free() them. NULL if there are none. */
static char *read_records(LOGICAL_PROCESSOR_RELATIONSHIP relation, DWORD *bytes)
{
    *bytes = 0;
    GetLogicalProcessorInformationEx(relation, NULL, bytes);
    char *records = *bytes ? malloc(*bytes) : NULL;
    if (records && !GetLogicalProcessorInformationEx(relation, (record *)(void *)records, bytes)) {
        free(records);
        records = NULL;
    }
    return records;
}

/* EfficiencyClass, the second byte, which headers of mingw-w64 do not name. */
static BYTE class_of(const PROCESSOR_RELATIONSHIP *core)
{
    return ((const BYTE *)core)[1];
}

static qn_processor *find(qn_topology *t, int id)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->at[i].id == id)
            return &t->at[i];
    return NULL;
}

static void take_core(qn_topology *t, const PROCESSOR_RELATIONSHIP *core, WORD group, BYTE fastest)
{
    int first = -1;
    for (WORD g = 0; g < core->GroupCount; g++)
        for (int id = 0; id < (int)GROUP_BITS && core->GroupMask[g].Group == group; id++) {
            qn_processor *p = core->GroupMask[g].Mask >> id & 1 ? find(t, id) : NULL;
            if (!p)
                continue;
            if (first < 0) {
                first = id;
                t->n_cores++;
            }
            p->core = first;
            p->speed = class_of(core) < fastest ? slower_class : 1;
        }
}

static void read_cores(qn_topology *t, WORD group)
{
    DWORD bytes;
    BYTE fastest = 0;
    char *records = read_records(RelationProcessorCore, &bytes);
    for (DWORD at = 0; records && at < bytes; at += ((record *)(void *)(records + at))->Size) {
        const BYTE class = class_of(&((record *)(void *)(records + at))->Processor);
        fastest = class > fastest ? class : fastest;
    }
    for (DWORD at = 0; records && at < bytes; at += ((record *)(void *)(records + at))->Size)
        take_core(t, &((record *)(void *)(records + at))->Processor, group, fastest);
    free(records);
}

static void read_nodes(qn_topology *t, WORD group)
{
    DWORD bytes;
    bool is_used[QN_MAX_NODES] = { false };
    char *records = read_records(RelationNumaNode, &bytes);
    for (DWORD at = 0; records && at < bytes; at += ((record *)(void *)(records + at))->Size) {
        const NUMA_NODE_RELATIONSHIP *node = &((record *)(void *)(records + at))->NumaNode;
        for (size_t i = 0; i < t->n && node->GroupMask.Group == group && node->NodeNumber < QN_MAX_NODES; i++)
            if (node->GroupMask.Mask >> t->at[i].id & 1)
                t->at[i].node = (int)node->NodeNumber;
    }
    free(records);
    for (size_t i = 0; i < t->n; i++)
        is_used[t->at[i].node] = true;
    for (int node = 0; node < QN_MAX_NODES; node++)
        t->n_nodes += is_used[node];
}

void qn_topology_read(const char *root, qn_topology *t)
{
    const KAFFINITY mask = *root ? 1 : read_affinity();
    const WORD group = own_group();
    *t = (qn_topology){ 0 };
    for (int id = 0; id < (int)GROUP_BITS; id++)
        if (mask >> id & 1)
            t->at[t->n++] = (qn_processor){ .id = id, .core = id, .speed = 1 };
    if (!*root)
        read_cores(t, group);
    t->n_cores = t->n_cores ? t->n_cores : t->n;
    read_nodes(t, group);
}

int qn_cpu_threads(void)
{
    int n = 0;
    for (KAFFINITY mask = read_affinity(); mask; mask &= mask - 1)
        n++;
    return n;
}
