/* Limits of processor time, from control groups. */
#include "base/cpu.h"

#include "base/append.h"
#include "base/posix/control_groups.h"

#include <stdio.h>
#include <string.h>

/* The smallest quota of the groups. */
struct least {
    const char *root;
    double quota; /* 0: none yet */
};

/* Reads a file of a group as text; an empty text if there is none. */
static void read_text(const char *root, const char *folder, const char *name, char *text, size_t bytes)
{
    char path[QN_GROUP_PATH_BYTES + 64];
    FILE *file = qn_print(path, sizeof path, "%s%s/%s", root, folder, name) ? fopen(path, "re") : NULL;
    if (!file || !fgets(text, (int)bytes, file))
        *text = '\0';
    if (file)
        fclose(file);
}

/* Both versions give the time in microseconds that the group may use in each period; without a limit "max" or -1. */
static void take_group(void *context, const char *folder, bool v2)
{
    struct least *least = context;
    char text[64], period_text[64];
    double used = 0, period = 0;
    read_text(least->root, folder, v2 ? "cpu.max" : "cpu.cfs_quota_us", text, sizeof text);
    if (v2) {
        if (sscanf(text, "%lf %lf", &used, &period) != 2)
            return;
    } else {
        read_text(least->root, folder, "cpu.cfs_period_us", period_text, sizeof period_text);
        if (sscanf(text, "%lf", &used) != 1 || sscanf(period_text, "%lf", &period) != 1)
            return;
    }
    if (used > 0 && period > 0 && (least->quota == 0 || used / period < least->quota))
        least->quota = used / period;
}

double qn_cpu_quota_in(const char *root)
{
    struct least least = { .root = root };
    qn_visit_control_groups(root, "cpu", take_group, &least);
    return least.quota;
}

double qn_cpu_quota(void)
{
    return qn_cpu_quota_in("");
}
