/* Finds a process's control groups by /proc/self/cgroup, whose lines are ID:CONTROLLERS:GROUP. */
#include "base/posix/control_groups.h"

#include "base/append.h"

#include <stdio.h>
#include <string.h>

/* The group below its mount, and all above it. */
static void visit_upwards(const char *mount, const char *group, bool v2,
                          void (*visit)(void *context, const char *folder, bool v2), void *context)
{
    char folder[QN_GROUP_PATH_BYTES];
    if (!qn_print(folder, sizeof folder, "%s%s", mount, group))
        return;
    for (;;) {
        visit(context, folder, v2);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < strlen(mount))
            return;
        *slash = '\0';
    }
}

/* Whether a name is in a list with commas. */
static bool is_listed(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, length) && (!at[length] || at[length] == ','))
            return true;
    return false;
}

void qn_visit_control_groups(const char *root, const char *controller,
                             void (*visit)(void *context, const char *folder, bool v2), void *context)
{
    char path[QN_GROUP_PATH_BYTES], line[QN_GROUP_PATH_BYTES], mount[256];
    FILE *file = qn_print(path, sizeof path, "%s/proc/self/cgroup", root) ? fopen(path, "re") : NULL;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        controllers++;
        if (!*controllers)
            visit_upwards("/sys/fs/cgroup", group, true, visit, context);
        else if (is_listed(controllers, controller) && qn_print(mount, sizeof mount, "/sys/fs/cgroup/%s", controller))
            visit_upwards(mount, group, false, visit, context);
    }
    if (file)
        fclose(file);
}
