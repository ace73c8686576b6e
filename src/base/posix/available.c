/* Available memory on Linux, from /proc/meminfo and control groups, and available addresses. */
#include "base/available.h"

#include "base/posix/control_groups.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATH_BYTES = QN_GROUP_PATH_BYTES };

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The number in a file; UINT64_MAX if there is none ("max"). */
static uint64_t number_in(const char *root, const char *folder, const char *name)
{
    char path[PATH_BYTES + 64];
    uint64_t value = UINT64_MAX;
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    fclose(file);
    return value;
}

static uint64_t of_system(const char *root)
{
    char path[PATH_BYTES], line[128];
    uint64_t kilobytes;
    uint64_t bytes = UINT64_MAX;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kilobytes) == 1)
            bytes = kilobytes * 1024;
    if (file)
        fclose(file);
    return bytes;
}

/* The bytes left under the limit of a control group. Page cache counts as used, but can be dropped. */
static uint64_t of_group(const char *root, const char *folder, bool v2)
{
    const uint64_t limit = number_in(root, folder, v2 ? "memory.max" : "memory.limit_in_bytes");
    const uint64_t used = number_in(root, folder, v2 ? "memory.current" : "memory.usage_in_bytes");
    char path[PATH_BYTES + 64], line[256];
    uint64_t files = 0, value;
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s%s/memory.stat", root, folder);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, v2 ? "inactive_file %" SCNu64 : "total_inactive_file %" SCNu64, &value) == 1)
            files = value;
    if (file)
        fclose(file);
    const uint64_t held = used - smaller(files, used);
    return limit > held ? limit - held : 0;
}

/* The least of what the system and the groups leave. */
struct least {
    const char *root;
    uint64_t bytes;
};

static void take_group(void *context, const char *folder, bool v2)
{
    struct least *least = context;
    least->bytes = smaller(least->bytes, of_group(least->root, folder, v2));
}

uint64_t qn_available_memory_in(const char *root)
{
    struct least least = { .root = root, .bytes = of_system(root) };
    qn_visit_control_groups(root, "memory", take_group, &least);
    return least.bytes;
}

uint64_t qn_available_memory(void)
{
    return qn_available_memory_in("");
}

uint64_t qn_available_addresses(void)
{
    struct rlimit limit;
    unsigned long long pages = 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%llu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    const uint64_t used = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}
