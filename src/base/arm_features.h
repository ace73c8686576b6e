/* What an ARM processor has beyond ARMv8.0: only the system tells. False on other processors. */
#ifndef QN_BASE_ARM_FEATURES_H
#define QN_BASE_ARM_FEATURES_H

#include <stdbool.h>

bool qn_arm_has_dotprod(void);
bool qn_arm_has_i8mm(void);

#endif
