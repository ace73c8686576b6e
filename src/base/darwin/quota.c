/* Limits of processor time: macOS has none. */
#include "base/cpu.h"

double qn_cpu_quota_in(const char *root)
{
    (void)root;
    return 0;
}

double qn_cpu_quota(void)
{
    return 0;
}
