/* Features of an ARM processor, from Windows, which has no query for I8MM without SVE. */
#include "base/arm_features.h"

#include <windows.h>

enum { V82_DP = 43 }; /* PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE */

bool qn_arm_has_dotprod(void)
{
    return IsProcessorFeaturePresent(V82_DP);
}

bool qn_arm_has_i8mm(void)
{
    return false;
}
