/* Control groups: macOS has none. */
#include "base/posix/control_groups.h"

void qn_visit_control_groups(const char *root, const char *controller,
                             void (*visit)(void *context, const char *folder, bool v2), void *context)
{
    (void)root, (void)controller, (void)visit, (void)context;
}
