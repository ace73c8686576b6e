/* Features of an ARM processor, from sysctl. */
#include "base/arm_features.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/sysctl.h>

static bool has(const char *name)
{
    int32_t value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value == 1;
}

bool qn_arm_has_dotprod(void)
{
    return has("hw.optional.arm.FEAT_DotProd");
}

bool qn_arm_has_i8mm(void)
{
    return has("hw.optional.arm.FEAT_I8MM");
}
