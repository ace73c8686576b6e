/* Features of an ARM processor, from Linux's auxiliary vector. */
#include "base/arm_features.h"

#include "base/cpu.h"

#if QN_ARM64
#include <sys/auxv.h>

enum { ASIMDDP = 1 << 20, I8MM = 1 << 13 }; /* asm/hwcap.h for arm64 */

bool qn_arm_has_dotprod(void)
{
    return getauxval(AT_HWCAP) & ASIMDDP;
}

bool qn_arm_has_i8mm(void)
{
    return getauxval(AT_HWCAP2) & I8MM;
}
#else
bool qn_arm_has_dotprod(void)
{
    return false;
}

bool qn_arm_has_i8mm(void)
{
    return false;
}
#endif
