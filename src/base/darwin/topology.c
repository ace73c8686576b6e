/* Reads the topology by sysctl: levels of performance, the fastest first, with cores and hardware threads. macOS tells
 * no affinity and has no files of the system: below another root than "" is one processor. */
#include "base/topology.h"

#include "base/cpu.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/sysctl.h>

/* An efficient core compared with a performance core: of M1 to M4 it does a third to half in matrix multiplications. */
static const float slower_level = 0.4f;

static size_t read_number(const char *name, size_t fallback)
{
    int32_t value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value > 0 ? (size_t)value : fallback;
}

static size_t read_level(size_t level, const char *what, size_t fallback)
{
    char name[64];
    snprintf(name, sizeof name, "hw.perflevel%zu.%s", level, what);
    return read_number(name, fallback);
}

/* Adds the processors of a level: the hardware threads of a core have adjacent numbers. */
static void add_level(qn_topology *t, size_t n_cores, size_t n_threads, float speed)
{
    const size_t per_core = n_cores && n_threads > n_cores ? n_threads / n_cores : 1;
    for (size_t i = 0; i < n_threads && t->n < QN_MAX_PROCESSORS; i++) {
        const int id = (int)t->n;
        t->at[t->n++] = (qn_processor){ .id = id, .core = id - (int)(i % per_core), .speed = speed };
        t->n_cores += i % per_core == 0;
    }
}

void qn_topology_read(const char *root, qn_topology *t)
{
    *t = (qn_topology){ .n_nodes = 1 };
    const size_t n_levels = *root ? 0 : read_number("hw.nperflevels", 0);
    for (size_t level = 0; level < n_levels; level++)
        add_level(t, read_level(level, "physicalcpu", 0), read_level(level, "logicalcpu", 0),
                  level == 0 ? 1 : slower_level);
    if (!t->n)
        add_level(t, *root ? 1 : read_number("hw.physicalcpu", 1), *root ? 1 : read_number("hw.logicalcpu", 1), 1);
}

int qn_cpu_threads(void)
{
    return (int)read_number("hw.logicalcpu", 1);
}
