/* The cores and hardware threads that the process may run on, from its affinity mask and sysfs. */
#include "base/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

int qn_cpu_threads(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int qn_cpu_cores(void)
{
    int cores = 0;
#ifdef __linux__
    /* A core counts once, at the first of its hardware threads in the affinity mask. */
    cpu_set_t set, seen;
    CPU_ZERO(&seen);
    if (sched_getaffinity(0, sizeof set, &set))
        return qn_cpu_threads();
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set) || CPU_ISSET(cpu, &seen))
            continue;
        cores++;
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        FILE *file = fopen(path, "re");
        if (!file)
            continue;
        int first, last;
        char separator = 0;
        while (fscanf(file, "%d", &first) == 1) {
            last = first;
            if (fscanf(file, "%c", &separator) == 1 && separator == '-' && fscanf(file, "%d%c", &last, &separator) < 1)
                last = first;
            for (int sibling = first; sibling <= last && sibling < CPU_SETSIZE; sibling++)
                if (sibling >= 0)
                    CPU_SET(sibling, &seen);
            if (separator != ',')
                break;
        }
        fclose(file);
    }
#endif
    return cores > 0 ? cores : qn_cpu_threads();
}
